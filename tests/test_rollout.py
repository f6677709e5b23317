"""The loops: protocol and schema of each stage, on recorded responses and the real judge."""

import json
from dataclasses import replace

import pytest
from support import FakeEngine, FakeJudge, square_problem, trajectories_of, write_lines

from cobalt.engine.replay import ReplayEngine
from cobalt.episode import ALL_PUBLIC_PASSED
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.rollout import evaluate
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns, turn_metrics
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.rollout.protocols import Outcomes, outcomes_of
from cobalt.rollout.single_turn import SampleSettings, sample
from cobalt.stage.errors import InfrastructureError, RequestRefused, ServiceDown, UserError
from cobalt.stage.records import read_records
from cobalt.stage.run import Each, errors_path

RIGHT = "<think>square it</think>\n```python\nprint(int(input()) ** 2)\n```"
DOUBLE = "<think>double it</think>\n```python\nprint(int(input()) * 2)\n```"  # right for 2 only
CRASH = "```python\nraise ValueError('no')\n```"
NO_CODE = "I do not know."
SETTINGS = {"num_completions": 2, "max_tokens": 64, "seed": 0}


def replay(tmp_path, turns):
    return ReplayEngine(write_lines(tmp_path / "recorded.jsonl", [{"id": 0, "raw_responses": turns}]), len(turns[0]))


@pytest.fixture
async def judge():
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        yield judge


@pytest.mark.sandbox
async def test_single_turn_judges_every_sample_on_every_test(tmp_path, judge):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0)])
    run = SampleSettings(problems, tmp_path / "s.jsonl", **(SETTINGS | {"num_completions": 4}))
    engine = replay(tmp_path, [[RIGHT, DOUBLE, CRASH, NO_CODE]])
    assert not (await sample(run, engine, judge)).failed
    [record] = read_records(run.output_file)
    assert record["responses"] == [RIGHT, DOUBLE, CRASH, NO_CODE]
    passing = [[True] * 4, [True, False, False, False], [False] * 4, [False] * 4]
    assert [result["passing"] for result in record["exec_results"]] == passing
    kinds = ["passed", "wrong_answer", "runtime_error", "no_code"]
    assert [result["verdicts"][1]["kind"] for result in record["exec_results"]] == kinds
    assert record["instruction"].endswith("Print the square of a number.")
    assert record["finish_reasons"] == ["stop"] * 4


@pytest.mark.sandbox
async def test_multi_turn_feeds_back_the_first_failing_public_test_and_goes_on_after_success(tmp_path, judge):
    first = write_lines(tmp_path / "s.jsonl", [square_problem(0, responses=[DOUBLE, RIGHT])])
    run = RepairSettings(first, tmp_path / "m.jsonl", **SETTINGS, turns=2, enable_thinking=True)
    engine = replay(tmp_path, [[DOUBLE, RIGHT], [RIGHT, NO_CODE], [RIGHT, RIGHT]])
    assert not (await repair(run, engine, judge)).failed
    [record] = read_records(run.output_file)
    assert record["raw_responses"] == [[DOUBLE, RIGHT], [RIGHT, NO_CODE], [RIGHT, RIGHT]]
    assert record["public_pass_rates"] == [[0.5, 1.0], [1.0, 0.0], [1.0, 1.0]]
    for conversation in record["conversations"]:
        roles = [message["role"] for message in conversation]
        assert roles == ["system", "user"] + ["assistant", "user"] * 3
        # With thinking on, the history holds answers only.
        assert not any("<think>" in message["content"] for message in conversation)
    repaired = record["conversations"][0]
    assert "Input:\n3\nProgram's Output:\n6\nExpected Output:\n9" in repaired[3]["content"]
    assert ALL_PUBLIC_PASSED in repaired[5]["content"]
    assert ALL_PUBLIC_PASSED in repaired[7]["content"]
    shapes = {name: [len(turn) for turn in record[name]] for name in ("finish_reasons", "completion_tokens", "errors")}
    assert set(map(tuple, shapes.values())) == {(2, 2, 2)}


@pytest.mark.sandbox
async def test_evaluation_judges_the_programs_that_the_public_tests_judged(tmp_path, judge):
    # The answer is longer than the history's cap: the program must come from the whole response all the same.
    long = "<think>t</think>\n" + "a" * 7000 + "\n```python\nprint(int(input()) ** 2)\n```"
    first = write_lines(tmp_path / "s.jsonl", [square_problem(0, responses=[DOUBLE, long])])
    run = RepairSettings(first, tmp_path / "m.jsonl", **SETTINGS, turns=1)
    await repair(run, replay(tmp_path, [[DOUBLE, long], [RIGHT, CRASH]]), judge)
    assert not (await evaluate_turns(TurnsSettings(run.output_file, tmp_path / "e.jsonl"), judge)).failed
    [record] = read_records(tmp_path / "e.jsonl")
    assert record["public_pass_rates"][0][1] == 1.0
    assert record["all_pass_rates"] == [[0.0, 1.0], [1.0, 0.0]]
    assert record["hidden_verdicts"][1][1] == ["runtime_error", "runtime_error"]


@pytest.mark.sandbox
async def test_a_replay_without_a_response_for_a_call_records_the_error_and_fails_the_tests(tmp_path, judge):
    first = write_lines(tmp_path / "s.jsonl", [square_problem(i, responses=[DOUBLE]) for i in (0, 1)])
    run = RepairSettings(first, tmp_path / "m.jsonl", **(SETTINGS | {"num_completions": 1}), turns=1)
    await repair(run, replay(tmp_path, [[DOUBLE], [RIGHT]]), judge)
    whole, record = read_records(run.output_file)
    assert whole["finish_reasons"][1] == ["stop"]
    assert record["finish_reasons"][1] == ["error"]
    assert "holds no response" in record["errors"][1][0]
    assert record["public_pass_rates"][1] == [0.0]


async def test_a_malformed_record_ends_an_evaluation_and_what_was_finished_before_it_is_kept(tmp_path):
    records = [square_problem(number, raw_responses=[[RIGHT]]) for number in range(2)]
    path = write_lines(tmp_path / "m.jsonl", [*records, square_problem(2)])
    with pytest.raises(UserError, match="record 2"):
        await evaluate_turns(TurnsSettings(path, tmp_path / "e.jsonl", concurrency=1), FakeJudge(True))
    assert [record["id"] for record in read_records(tmp_path / "e.jsonl")] == [0, 1]


async def test_an_evaluation_holds_no_more_problems_than_it_works_on(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "m.jsonl", [square_problem(number, raw_responses=[[RIGHT]]) for number in range(20)])
    read = 0
    whole = evaluate.read_trajectories

    def counted(source, **options):
        nonlocal read
        for group in whole(source, **options):
            read += source == path  # the result is read as well, when it is measured
            yield group

    def passing(*_):
        assert read - len(judge.asked) < 2
        return True

    judge = FakeJudge(passing)
    monkeypatch.setattr(evaluate, "read_trajectories", counted)
    assert not (await evaluate_turns(TurnsSettings(path, tmp_path / "e.jsonl", concurrency=2), judge)).failed
    assert read == len(judge.asked) == 20


def test_turn_metrics_take_turns_and_samples_from_the_data():
    groups = [Outcomes("", ((0, 1), (1, 1))), Outcomes("", ((0.5, 1), (0, 0), (0, 0), (0, 1)))]
    metrics = turn_metrics(groups, "file")
    assert [row.pass_at_1 for row in metrics] == [0.25, 0.75]
    assert metrics[0].pass_rate == pytest.approx((0.5 + 0.125) / 2)
    assert metrics[1].relative_change == pytest.approx(2.0)
    for none in ([], [Outcomes("", ((1, 1),)), Outcomes("", ((1,),))]):
        with pytest.raises(UserError, match="file: "):
            turn_metrics(none, "file")


def test_a_run_that_is_not_evaluated_has_no_metrics():
    with pytest.raises(UserError, match="eval_multi_turn.py"):
        outcomes_of(trajectories_of(square_problem(3, raw_responses=[["a"]])))


@pytest.mark.parametrize("error", [KeyError("planted"), ServiceDown("planted"), RequestRefused("planted")])
async def test_a_defect_a_lost_service_or_a_refused_key_ends_the_run_and_is_not_a_failed_problem(tmp_path, error):
    async def work(item):
        if item == 2:
            raise error
        return {"id": item}

    with pytest.raises(type(error), match="planted"), Each(tmp_path / "r.jsonl", {}) as output:
        await output.make(range(4), int, work, concurrency=1)
    assert output.ids == [0, 1]
    assert not errors_path(output.path).exists()


async def test_a_result_with_unknown_ids_is_not_continued(tmp_path):
    write_lines(tmp_path / "r.run.json", [{"arguments": {}, "inputs": {}}])

    async def work(item):
        return {"id": item}

    with Each(write_lines(tmp_path / "r.jsonl", [{"id": 9}]), {}) as output, pytest.raises(UserError, match="id 9"):
        await output.make(range(2), int, work, concurrency=1)


def device_engine(device, failing=()):
    """An engine on a device, which fails for some problems."""
    about = {"model": "m"} | ({"device": device} if device else {})
    return FakeEngine(lambda call: InfrastructureError("gone") if call.problem_id in failing else RIGHT, **about)


def seeds_of(engine):
    return [settings.seed for _, settings, _ in engine.asked]


def generation_of(result):
    return json.loads(result.with_suffix(".run.json").read_text())["arguments"]["generation"]


@pytest.mark.parametrize(
    ("samples", "device", "seeded"),
    [
        ("auto", "cpu", True),
        ("auto", "gpu", False),
        ("auto", None, True),
        ("seeded", "gpu", True),
        ("unseeded", "cpu", False),
    ],
)
async def test_samples_have_seeds_where_these_cost_nothing_or_are_asked_for(tmp_path, samples, device, seeded):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    engine = device_engine(device)
    run = RepairSettings(problems, tmp_path / "m.jsonl", **SETTINGS, turns=1, samples=samples)
    assert not (await repair(run, engine, FakeJudge(True))).failed
    assert len(seeds_of(engine)) == 6  # two problems: a call for both samples, then one for each
    assert len(set(seeds_of(engine))) == (6 if seeded else 1)
    assert (None in seeds_of(engine)) is not seeded
    assert generation_of(run.output_file)["seed"] == (0 if seeded else None)


@pytest.mark.parametrize(("began", "moved"), [("cpu", "gpu"), ("gpu", "cpu")])
async def test_a_run_that_resumes_on_another_device_goes_on_as_it_began(tmp_path, began, moved):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    first, second = device_engine(began, failing=[1]), device_engine(moved)
    run = SampleSettings(problems, tmp_path / "s.jsonl", **SETTINGS)
    assert (await sample(run, first, FakeJudge(True))).failed == 1
    other = SampleSettings(problems, run.output_file, **SETTINGS, samples="unseeded" if began == "cpu" else "seeded")
    with pytest.raises(UserError, match=r"generation\.seed"):
        await sample(other, second, FakeJudge(True))
    assert not (await sample(run, second, FakeJudge(True))).failed
    assert {seed is None for engine in (first, second) for seed in seeds_of(engine)} == {began == "gpu"}


class UnreachableEngine:
    async def describe(self):
        pytest.fail("the engine was asked")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_tokens": 32}, r"generation\.max_tokens"),
        ({"seed": 1}, r"generation\.seed"),
        ({"prompts": "pocket"}, "prompts"),
        ({"turns": 2}, "turns"),
        ({"samples": "unseeded"}, r"generation\.seed"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"truncated_thinking": "drop"}, "truncated_thinking"),
        ({"chat_template_thinking": "off"}, r"generation\.chat_template_thinking"),
    ],
)
async def test_a_run_of_other_settings_is_refused_before_services_are_asked(tmp_path, changed, named):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(0), square_problem(1)])
    run = RepairSettings(problems, tmp_path / "m.jsonl", **SETTINGS, turns=1, enable_thinking=True)
    assert (await repair(run, device_engine("cpu", failing=[1]), FakeJudge(True))).failed == 1
    with pytest.raises(UserError, match=named):
        await repair(replace(run, **changed), UnreachableEngine(), FakeJudge(True))
