"""Figures of evaluated results: each measure agrees with its definition, intervals cover, files are read by reports."""

import itertools
import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import result_of, square_problem, trajectories_of, trajectory_record, write_lines, write_report

from cobalt.commands.evaluate import EvaluateSettings, evaluate
from cobalt.episode.record import read_trajectories
from cobalt.judge import VerdictKind
from cobalt.report.runs import read_run
from cobalt.report.viewer.page import write_viewer
from cobalt.rollout.diversity import distinct_programs
from cobalt.rollout.evaluate import SamplesSettings, count_distinct, evaluate_samples, sample_metrics, turn_metrics
from cobalt.rollout.metrics import DIFFERENCES, RATES, best_of_k, bootstrap_interval, pass_at_k
from cobalt.rollout.protocols import Outcomes, best_of, outcomes_of, pass_at, protocol_figures
from cobalt.stage.errors import UserError
from studies.seeds import over_runs

# --- one problem, and intervals over problems


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6), st.data())
def test_pass_at_k_and_the_best_of_k_are_means_over_all_draws_of_k_programs(programs, data):
    k = data.draw(st.integers(1, len(programs)))
    chances, any_right = [], []
    for draw in itertools.combinations(programs, k):
        best = [right for score, right in draw if score == max(score for score, _ in draw)]
        chances.append(sum(best) / len(best))
        any_right.append(any(right for _, right in draw))
    scores, correct = zip(*programs, strict=True)
    assert best_of_k(scores, correct, k) == pytest.approx(statistics.fmean(chances))
    assert pass_at_k(len(programs), sum(correct), k) == pytest.approx(statistics.fmean(any_right))


@pytest.mark.parametrize(("problems", "most"), [(1, 0.95), (3, 0.632), (30, 0.095), (300, 0.00994)])
def test_equal_values_are_their_interval_and_get_an_exact_bound_where_their_limits_are_known(problems, most):
    assert bootstrap_interval([0.25] * problems) == pytest.approx((0.25, 0.25))
    assert bootstrap_interval([0.0] * problems, bounds=RATES) == pytest.approx((0, most), rel=1e-2)
    assert bootstrap_interval([1.0] * problems, bounds=RATES) == pytest.approx((1 - most, 1), rel=1e-2)
    assert bootstrap_interval([0.0] * problems, bounds=DIFFERENCES) == pytest.approx((-most, most), rel=1e-2)


def test_95_percent_intervals_cover_the_true_mean_about_as_often_as_they_say_and_are_the_same_each_time():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        values = generator.binomial(16, 0.4, 100) / 16
        lower, upper = bootstrap_interval(values)
        covered += lower <= 0.4 <= upper
    assert 0.91 <= covered / 300 <= 0.98
    assert (lower, upper) == bootstrap_interval(list(values))


def test_the_interval_over_runs_is_students():
    """With 2 and 3 runs the quantile has a closed form: tan(0.475 pi), and 0.95 sqrt(2 / (1 - 0.95^2))."""
    for values, quantile in (([1.0, 3.0], math.tan(0.475 * math.pi)), ([0.0, 2.0, 1.0], 0.95 * math.sqrt(2 / 0.0975))):
        runs = over_runs(values)
        assert runs.mean == (runs.lower + runs.upper) / 2 == pytest.approx(sum(values) / len(values))
        half = quantile * statistics.stdev(values) / math.sqrt(len(values))
        assert (runs.upper - runs.lower) / 2 == pytest.approx(half, rel=1e-4)
    assert over_runs([0.5]) is None


# --- measures by turn


def outcomes(*samples):
    """Of one problem; `samples` is [sample][turn] of (share of public tests, right)."""
    return Outcomes(
        "",
        tuple(tuple(right for _, right in sample) for sample in samples),
        tuple(tuple(share for share, _ in sample) for sample in samples),
    )


def test_each_measure_is_averaged_over_problems_by_turn():
    unlucky = outcomes([(1.0, False), (1.0, True)], [(0.5, False), (0.5, False)])  # stops before it is right
    repaired = outcomes([(0.0, False), (1.0, True)], [(1.0, True), (0.0, False)])  # stops before it breaks
    both = [unlucky, repaired]
    figures = protocol_figures(both, [1, 2]) | {"best of 1": best_of(both, 1)}
    assert {name: [mean.value for mean in means] for name, means in figures.items()} == {
        "pass@1": [0.25, 0.5],
        "pass@2": [0.5, 1.0],
        "stopped": [0.25, 0.5],  # of `repaired` both samples, of `unlucky` none
        "programs until then": [1.0, 1.5],
        "best of 2": [0.5, 1.0],
        "best of 1": [0.25, 0.5],
    }
    assert protocol_figures(both, []).keys() == {"stopped", "programs until then", "best of 2"}


def test_turn_metrics_take_turns_and_samples_from_the_data():
    groups = [Outcomes("", ((0, 1), (1, 1))), Outcomes("", ((0.5, 1), (0, 0), (0, 0), (0, 1)))]
    metrics = turn_metrics(groups, "file")
    assert [row.pass_at_1 for row in metrics] == [0.25, 0.75]
    assert metrics[0].pass_rate == pytest.approx((0.5 + 0.125) / 2)
    assert metrics[1].relative_change == pytest.approx(2.0)
    for none in ([], [Outcomes("", ((1, 1),)), Outcomes("", ((1,),))]):
        with pytest.raises(UserError, match="file: "):
            turn_metrics(none, "file")


def test_a_measure_without_any_success_has_a_bound_and_not_a_point():
    figures = protocol_figures([outcomes([(0.0, False)], [(0.0, False)])] * 3, [1, 2])
    assert figures.pop("programs until then")[0].interval == (1.0, 1.0)  # a number of programs has no bound
    assert all(mean.interval == pytest.approx((0.0, 0.632), abs=1e-3) for [mean] in figures.values())


def test_measures_that_need_results_which_are_not_there_are_missing_or_name_the_evaluation():
    unknown = outcomes_of(trajectories_of(square_problem(1, raw_responses=[["a"]], all_pass_rates=[[1.0]])))
    assert unknown.public is None
    assert {name: means[0].value for name, means in protocol_figures([unknown], [1]).items()} == {"pass@1": 1.0}
    with pytest.raises(UserError, match="eval_multi_turn.py"):
        outcomes_of(trajectories_of(square_problem(3, raw_responses=[["a"]])))


def protocol_rows(report):
    """The values of a report's other measures, by measure and turn."""
    lines = report.with_name("protocols.csv").read_text().splitlines()
    return {tuple(line.split(",")[1:3]): float(line.split(",")[3]) for line in lines[1:]}


def test_a_report_has_the_measures_and_calls_the_best_by_tests_that_are_the_hidden_ones_an_oracle(tmp_path):
    (tmp_path / "run").mkdir()
    samples = [[(0, 0), (2, 2)], [(1, 0), (1, 0)]]
    records = [trajectory_record(name, samples, difficulty=name) for name in ("EASY", "HARD")]
    shown = [record | {"public_test_cases": record["hidden_test_cases"]} for record in records]
    for problems, best in ((records, "best of 2"), (shown, "oracle best of 2"), ([shown[0], records[1]], "best of 2")):
        write_lines(tmp_path / "run" / "evaluation.jsonl", problems)
        report = write_report({"a": tmp_path / "run"}, tmp_path / "report", ks=[1, 2])
        rows = protocol_rows(report)
        assert rows["pass@2", "1"] == rows[best, "1"] == 1.0
        assert rows["stopped", "1"] == rows["pass@1", "1"] == 0.5
        assert [name for name, turn in rows if "best" in name and turn == "1"] == [best]
        assert ("oracle" in report.read_text()) == (problems is not records)
        assert report.with_name("difficulty.csv").exists()
    with pytest.raises(UserError, match="k = 3 .* 2$"):
        write_report({"a": tmp_path / "run"}, tmp_path / "other", ks=[3])


# --- single-turn results

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
    assert turn.hidden_verdicts.count(VerdictKind.PASSED) == hidden[-1] * len(group.problem.hidden_tests)
    assert (turn.finish_reason, turn.completion_tokens, turn.program) == ("stop", 7, f"print({len(passing) - 1})")


MULTI_TURN = trajectory_record("t", [[(2, 2), (1, 1)], [(1, 1), (2, 2)]])
FIRST = single(0, [RIGHT, RIGHT])


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (FIRST | {"exec_results": None}, ""),
        (FIRST | {"responses": None}, "'responses'"),
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


def score(correct, samples=20, difficulty=""):
    hidden = [(float(sample < correct),) for sample in range(samples)]
    return Outcomes(difficulty, tuple(hidden), distinct=(1, 0))


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
    judged = [outcomes([(1.0, True)])]
    for measure in (
        lambda k: sample_metrics(scores, [1, k]),
        lambda k: pass_at(scores, k),
        lambda k: best_of(judged, k),
    ):
        for k, named in ((10, "k = 10 .* [41]$"), (0, r"\bk\b.* 0\b"), (-1, r"\bk\b.* -1\b")):
            with pytest.raises(UserError, match=named):
                measure(k)


async def test_the_figures_of_a_finished_result_are_written_again_for_another_k(tmp_path):
    output = evaluated(tmp_path, single(0, [RIGHT, HALF, HALF, HALF]))
    for ks, expected in (((), {"1": 0.25}), ((2, 4), {"2": 0.5, "4": 1.0})):
        await evaluate(EvaluateSettings(input_file=tmp_path / "single.jsonl", output_file=output, k=ks))
        group, *_ = json.loads((tmp_path / "evaluation.metrics.json").read_text())["single_turn"]["groups"]
        assert {k: mean["value"] for k, mean in group["pass_at"].items()} == expected


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


# --- different programs: those whose normalised syntax trees differ

BASE = "import math\ndef area(radius):\n    result = math.pi * radius ** 2\n    return result\n"
DOCUMENTED = BASE.replace("  result", '  """The area."""\n    result', 1)
EXCHANGED = BASE.replace("result", "?").replace("radius", "result").replace("?", "radius")
SAME = [
    BASE.replace("\n", "\n\n    # why\n").replace("radius ** 2", "(radius ** 2)"),
    *(DOCUMENTED, f'"""Areas."""\n{BASE}', EXCHANGED),
    *(BASE.replace(name, "x") for name in ("result", "radius", "area")),
]
OTHERS = {
    "2": "3",
    "math": "cmath",
    "pi": "tau",
    "return result": "print(result)",
    "result": "radius",
    "area(": "(area",
}
METHODS = "class A:\n    def {0}(self): return 1\n    def {1}(self): return 2\n{0} = {1} = A()\nprint({0}.run())"
ATTRIBUTES = "class A:\n    {0} = 1\n    {1}: int = 2\n{0} = {1} = A()\nprint({0}.x)"
METHOD = "class A:\n    def run(self): return 1\nprint(A().run())"
KEYWORDS = "def f({0}, {1}): return {0} - {1}\nprint(f(x=1, y=2))"


@pytest.mark.parametrize(
    ("programs", "count"),
    [
        *(([BASE, other], 1) for other in SAME),
        *(([BASE, BASE.replace(part, other)], 2) for part, other in OTHERS.items()),
        (["print(sum([1]))", "print(max([1]))"], 2),
        ([METHOD, METHOD.replace("A", "B").replace("self", "this")], 1),
        ([METHOD, METHOD.replace("run", "go")], 2),
        # Variables may have the names of methods and attributes, and parameters those of keywords.
        ([METHODS.format("run", "go"), METHODS.format("go", "run")], 2),
        ([ATTRIBUTES.format("x", "y"), ATTRIBUTES.format("y", "x")], 2),
        ([KEYWORDS.format("x", "y"), KEYWORDS.format("y", "x")], 2),
        # Texts that are not programs are compared as texts.
        ([" def f(", "def f(", "def g("], 2),
        ([], 0),
    ],
)
def test_neither_form_nor_names_that_a_program_gives_distinguish_it(programs, count):
    assert distinct_programs(programs) == count


def test_different_programs_of_a_problem_are_counted_and_of_them_the_right_ones(tmp_path):
    programs = ["x = 1\nprint(x)", "y = 1\nprint(y)", "print(2)  # two", "print(2)", None]
    output = evaluated(tmp_path, single(0, [RIGHT, RIGHT, HALF, RIGHT, PUBLIC_ONLY], programs=programs))
    [group] = read_trajectories(output)
    assert count_distinct(group).distinct == (2, 2)
