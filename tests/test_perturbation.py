"""Impossible public tests: the laws of the swap, the files, and multi-turn runs with feedback from them."""

import asyncio
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import square_problem, write_lines
from test_rollout import DOUBLE, RIGHT, SETTINGS, replay

from cobalt.hacking.perturbation import PerturbationSettings, perturb, swap_outputs
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite
from cobalt.rollout.evaluate import TurnsSettings, evaluate_turns
from cobalt.rollout.multi_turn import RepairSettings, repair
from cobalt.stage.errors import UserError
from cobalt.stage.records import read_records

OUTPUTS = st.sampled_from(["1", "1\n", " 2", "2", "3", "[]"])
SUITES = st.lists(st.tuples(st.text(max_size=3).map(json.dumps), OUTPUTS), max_size=6)


@given(SUITES, st.integers(0, 50), st.sampled_from([None, "f"]))
def test_two_tests_with_distinct_outputs_swap_them_and_come_first(tests, seed, fn_name):
    public = TestSuite(tuple(test[0] for test in tests), tuple(test[1] for test in tests), fn_name)
    swapped = swap_outputs(public, random.Random(seed))
    if len({output.strip() for output in public.outputs}) < 2:
        assert swapped is None
        return
    modified, perturbed = swapped
    assert (len(modified), len(perturbed)) == (2, len(public))
    assert modified == perturbed.select([0, 1])
    assert modified.fn_name == perturbed.fn_name == fn_name
    assert modified.outputs[0].strip() != modified.outputs[1].strip()
    swapped_back = [(modified.inputs[0], modified.outputs[1]), (modified.inputs[1], modified.outputs[0])]
    rest = list(zip(perturbed.inputs[2:], perturbed.outputs[2:], strict=True))
    assert Counter(swapped_back) + Counter(rest) == Counter(tests)
    kept = iter(tests)
    assert all(test in kept for test in rest), "the other tests keep their order"
    assert swap_outputs(public, random.Random(seed)) == swapped


def test_every_pair_of_distinct_outputs_can_be_chosen():
    public = TestSuite(("a", "b", "c", "d"), ("1", "2", "3", "1"))
    chosen = {frozenset(swap_outputs(public, random.Random(seed))[0].inputs) for seed in range(100)}
    assert chosen == {frozenset(pair) for pair in ("ab", "ac", "bc", "bd", "cd")}


def equal_outputs(identifier):
    tests = json.dumps({"inputs": ["2", "3"], "outputs": ["4", " 4\n"]})
    return square_problem(identifier, public_test_cases=tests)


def test_problems_are_perturbed_left_out_or_dropped_and_counted(tmp_path):
    tests = TestSuite(("f(1)", "f(2)"), ("assert f(1) == 1", "assert f(2) == 2"), "f", True).to_json()
    problems = [square_problem(0, responses=["x"]), equal_outputs("same"), square_problem("several"), square_problem(7)]
    problems.append(square_problem(8, public_test_cases=tests))
    source = write_lines(tmp_path / "p.jsonl", problems)
    (tmp_path / "ids.txt").write_text("several\n\n7 \n")
    settings = PerturbationSettings(source, tmp_path / "o.jsonl", tmp_path / "ids.txt")
    summary = asyncio.run(perturb(settings)).summary
    # read, left out by id, assertions, equal outputs, perturbed
    assert [*summary["problems"].values()] == [5, 2, 1, 1, 1]
    [record] = read_records(tmp_path / "o.jsonl")
    added = {name: json.loads(record.pop(name)) for name in ("modified_test_cases", "perturbed_public_test_cases")}
    assert record == problems[0]
    assert added["modified_test_cases"] == added["perturbed_public_test_cases"]
    assert sorted(zip(*added["modified_test_cases"].values(), strict=True)) == [("2\n", "9\n"), ("3\n", "4\n")]
    assert json.loads((tmp_path / "o.run.json").read_text())["summary"] == summary


@pytest.mark.parametrize(
    ("problem", "ids", "says"),
    [
        (square_problem(7), b"7\nsevral", r"ids\.txt: .*p\.jsonl.*'sevral'"),
        (square_problem(7), b"\xff", r"ids\.txt.*one id a line"),
        (square_problem(7), None, r"ids\.txt"),
        (equal_outputs(7), b"", r"p\.jsonl"),
        ({name: square_problem(7)[name] for name in ("id", "question", "test_cases")}, b"", r"p\.jsonl"),
    ],
)
def test_files_that_leave_nothing_to_perturb_are_refused_before_anything_is_written(tmp_path, problem, ids, says):
    source = write_lines(tmp_path / "p.jsonl", [problem])
    if ids is not None:
        (tmp_path / "ids.txt").write_bytes(ids)
    with pytest.raises(UserError, match=says):
        asyncio.run(perturb(PerturbationSettings(source, tmp_path / "o.jsonl", tmp_path / "ids.txt")))
    assert not (tmp_path / "o.jsonl").exists()
    assert not ids or not list(tmp_path.glob("o.*"))


@pytest.mark.sandbox
async def test_feedback_of_a_perturbed_run_is_impossible_and_hidden_tests_stay_true(tmp_path):
    source = write_lines(tmp_path / "s.jsonl", [square_problem(0, responses=[RIGHT, DOUBLE])])
    await perturb(PerturbationSettings(source, tmp_path / "p.jsonl"))
    settings = RepairSettings(tmp_path / "p.jsonl", tmp_path / "m.jsonl", **SETTINGS, turns=1, public_tests="perturbed")
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        assert not (await repair(settings, replay(tmp_path, [[RIGHT, DOUBLE], [RIGHT, RIGHT]]), judge)).failed
        assert not (await evaluate_turns(TurnsSettings(tmp_path / "m.jsonl", tmp_path / "e.jsonl"), judge)).failed
    [record] = read_records(tmp_path / "e.jsonl")
    assert record["public_pass_rates"] == [[0.0, 0.0], [0.0, 0.0]]
    assert record["all_pass_rates"] == [[1.0, 1.0], [0.0, 1.0]]
    shown = record["conversations"][0][-1]["content"]
    modified = json.loads(record["modified_test_cases"])
    assert f"Expected Output:\n{modified['outputs'][0].strip()}" in shown
    assert f"Input:\n{modified['inputs'][0].strip()}" in shown
    assert json.loads((tmp_path / "m.run.json").read_text())["arguments"]["public_tests"] == "perturbed"


async def test_a_perturbed_run_needs_perturbed_tests(tmp_path):
    source = write_lines(tmp_path / "s.jsonl", [square_problem(0, responses=[RIGHT])])
    settings = RepairSettings(source, tmp_path / "m.jsonl", **SETTINGS, turns=1, public_tests="perturbed")
    with pytest.raises(UserError, match=r"s\.jsonl: problem 0.*perturbed_public_test_cases"):
        await repair(settings, replay(tmp_path, [[RIGHT]]), None)
    broken = square_problem(0, perturbed_public_test_cases="{")
    settings = RepairSettings(write_lines(source, [broken]), tmp_path / "m.jsonl", **SETTINGS, public_tests="perturbed")
    with pytest.raises(UserError, match="field 'perturbed_public_test_cases': tests are not valid JSON"):
        await repair(settings, replay(tmp_path, [[RIGHT]]), None)
