"""Evaluation of single-turn results: pass@k, difficulties, diversity, and records that reports and the viewer read."""

import json

import pytest
from support import result_of, square_problem, trajectory_record, write_lines, write_report

from cobalt.commands.evaluate import EvaluateSettings, evaluate
from cobalt.episode.record import read_trajectories
from cobalt.judge import VerdictKind
from cobalt.report.runs import read_run
from cobalt.report.viewer.page import write_viewer
from cobalt.rollout.evaluate_single import SamplesSettings, count_distinct, evaluate_samples, sample_metrics
from cobalt.rollout.protocols import Outcomes
from cobalt.stage.errors import UserError

PROGRAM = "```python\n{}\n```"


def single(identifier, passing, *, programs=None, **fields):
    """A single-turn record of `square_problem`; `passing` is [sample][test], the last two tests are hidden."""
    programs = programs or [f"print({sample})" for sample in range(len(passing))]
    return square_problem(
        identifier,
        instruction="Square.",
        responses=[PROGRAM.format(program) if program is not None else "none" for program in programs],
        exec_results=[result_of(*row).to_record() for row in passing],
        finish_reasons=["stop"] * len(passing),
        completion_tokens=[7] * len(passing),
        errors=[""] * len(passing),
        **fields,
    )


RIGHT, HALF, PUBLIC_ONLY, HIDDEN_ONLY = [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]


def evaluated(tmp_path, *records):
    output = tmp_path / "evaluation.jsonl"
    evaluate_samples(SamplesSettings(write_lines(tmp_path / "single.jsonl", records), output))
    return output


EVERY = json.loads(square_problem(0)["test_cases"])
BACKWARDS = {"test_cases": json.dumps({name: column[::-1] for name, column in EVERY.items()})}
WITHOUT_A_SPLIT = {"public_test_cases": None, "hidden_test_cases": None}


@pytest.mark.parametrize(
    ("passing", "fields", "public", "hidden"),
    [
        ([RIGHT, HALF, PUBLIC_ONLY, HIDDEN_ONLY], {}, [1.0, 1.0, 1.0, 0.0], [1.0, 0.5, 0.0, 1.0]),
        ([HIDDEN_ONLY[::-1]], BACKWARDS, [0.0], [1.0]),  # hidden tests are found wherever they stand
        ([RIGHT, PUBLIC_ONLY], WITHOUT_A_SPLIT, [0.0, 0.0], [1.0, 0.5]),
    ],
)
def test_records_become_evaluated_trajectories_of_one_turn(tmp_path, passing, fields, public, hidden):
    [group] = read_trajectories(evaluated(tmp_path, single(0, passing, **fields)))
    assert [trajectory.hidden_pass_rates for trajectory in group.trajectories] == [[rate] for rate in hidden]
    if group.problem.public_tests:
        assert [trajectory.public_pass_rates for trajectory in group.trajectories] == [[rate] for rate in public]
    [turn] = group.trajectories[-1].turns
    assert [kind is VerdictKind.PASSED for kind in turn.hidden_verdicts].count(True) == hidden[-1] * len(
        group.problem.hidden_tests
    )
    assert (turn.finish_reason, turn.completion_tokens, turn.program) == ("stop", 7, f"print({len(passing) - 1})")


MULTI_TURN = trajectory_record("t", [[(2, 2), (1, 1)], [(1, 1), (2, 2)]])
FIRST = single(0, [RIGHT, RIGHT])


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (FIRST | {"exec_results": None}, ""),
        (FIRST | {"responses": None}, "single-turn script"),
        (FIRST | {"responses": ["a"]}, ""),
        (FIRST | {"exec_results": [{"passing": [True], "feedback": [""]}] * 2}, ""),
        (FIRST | {"exec_results": [{"passing": [True] * 4, "feedback": [""] * 4, "verdicts": []}] * 2}, ""),
        (FIRST | {"hidden_test_cases": json.dumps({"inputs": ["9"], "outputs": ["81"]})}, ""),
        (MULTI_TURN, "eval_multi_turn.py"),
        (FIRST | MULTI_TURN, "eval_multi_turn.py"),  # it may continue a single-turn result, whose fields it keeps
    ],
)
def test_malformed_records_and_those_of_several_turns_are_refused_and_nothing_is_written(tmp_path, record, named):
    with pytest.raises(UserError, match=rf"single\.jsonl.*{named}"):
        evaluated(tmp_path, record)
    assert not (tmp_path / "evaluation.jsonl").exists()


def score(correct, samples=20, difficulty="", distinct=1, distinct_correct=0):
    hidden = [(float(sample < correct),) for sample in range(samples)]
    return Outcomes(difficulty, tuple(hidden), distinct=(distinct, distinct_correct))


def test_figures_of_a_difficulty_are_those_of_its_problems():
    scores = [score(20, difficulty="interview"), score(0, difficulty="introductory"), score(10, difficulty="interview")]
    groups = sample_metrics(scores)
    figures = [(group.group, group.problems, group.pass_at[1].value) for group in groups]
    assert figures == [("all", 3, 0.5), ("interview", 2, 0.75), ("introductory", 1, 0.0)]
    assert groups[1].pass_at == sample_metrics([scores[0], scores[2]])[0].pass_at


def test_a_k_beyond_the_samples_is_left_out_unless_it_is_asked_for():
    scores = [score(1, samples=4), score(2, samples=16)]
    assert list(sample_metrics(scores)[0].pass_at) == [1]
    assert sample_metrics(scores)[0].samples == (4, 16)
    assert list(sample_metrics(scores, [2, 4])[0].pass_at) == [2, 4]
    for ks, names in (([10], "k = 10 needs at least 10 samples"), ([0], "k is 0"), ([1, -1], "k is -1")):
        with pytest.raises(UserError, match=names):
            sample_metrics(scores, ks)


async def test_the_figures_of_a_finished_result_are_written_again_for_another_k(tmp_path):
    output = evaluated(tmp_path, single(0, [RIGHT, HALF, HALF, HALF]))
    for ks, expected in (((), {"1": 0.25}), ((2, 4), {"2": 0.5, "4": 1.0})):
        await evaluate(EvaluateSettings(input_file=tmp_path / "single.jsonl", output_file=output, k=ks))
        group, *_ = json.loads((tmp_path / "evaluation.metrics.json").read_text())["single_turn"]["groups"]
        assert {k: mean["value"] for k, mean in group["pass_at"].items()} == expected


def test_different_programs_are_counted(tmp_path):
    programs = ["x = 1\nprint(x)", "y = 1\nprint(y)", "print(2)  # two", "print(2)", None]
    output = evaluated(tmp_path, single(0, [RIGHT, RIGHT, HALF, RIGHT, PUBLIC_ONLY], programs=programs))
    [group] = read_trajectories(output)
    assert count_distinct(group).distinct == (2, 2)


def test_reports_and_the_viewer_read_the_result_like_any_other_and_not_one_that_is_not_evaluated(tmp_path):
    for name, passing in {"a": [RIGHT, HALF], "b": [RIGHT, RIGHT]}.items():
        folder = tmp_path / name
        folder.mkdir()
        write_lines(folder / "single_turn.jsonl", [single(0, passing), single(1, passing)])
        with pytest.raises(UserError, match=r"evaluation\.jsonl"):
            read_run(name, folder)
        generation = {"stage": "single_turn", "generation": {"temperature": 0.6}, "engine": {"model": name}}
        (folder / "single.run.json").write_text(json.dumps({"arguments": generation, "inputs": {}}))
        evaluated(folder, single(0, passing), single(1, passing))
    read = read_run("a", tmp_path / "a")
    assert (read.model, read.settings["single_turn.generation.temperature"]) == ("a", 0.6)
    assert [metric.pass_at_1 for metric in read.metrics] == [0.5]
    assert read.usage[0].completion_tokens == 28
    assert write_viewer({"a": tmp_path / "a"}, tmp_path / "view.html") == 2
    report = write_report({name: tmp_path / name for name in ("a", "b")}, tmp_path / "report", ks=[2])
    table, _, others = report.read_text().partition("## Other")
    assert "| change" not in table and "50.0" in table and "100.0" in others, "one turn, so no change between turns"
