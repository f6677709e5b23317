"""MBPP as problems: tests, splits, the three-shot prompt, and bad rows."""

import asyncio
import json

import pytest
from support import write_lines

from cobalt.datasets.mbpp import SPLITS, MbppSettings, mbpp, split_of
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary


def task(number, **fields):
    """A row of the release: return a number plus `number`."""
    name = f"plus_{number}"
    return {
        "text": f"Write a function to add {number}.",
        "code": f"def {name}(x):\r\n  return x + {number}",
        "task_id": number,
        "test_setup_code": None,
        "test_list": [f"assert {name}({x}) == {x + number}" for x in (0, 1, 2)],
        "challenge_test_list": [f"assert {name}(-1) == {number - 1}"],
    } | fields


def converted(tmp_path, rows, **settings):
    tmp_path.mkdir(exist_ok=True)
    output = tmp_path / "problems.jsonl"
    summary = mbpp(MbppSettings(output, write_lines(tmp_path / "mbpp.jsonl", rows), **settings)).summary
    return load_problems(output), summary["problems"]


ROWS = [task(number) for number in (601, 2, 3, 4, 11, 12, 510, 511)]


def test_a_split_is_kept_in_the_order_of_its_ids(tmp_path):
    problems, counts = converted(tmp_path, ROWS[::-1])
    assert [problem.id for problem in problems] == ["MBPP/11", "MBPP/12", "MBPP/510"]
    assert {problem.record["split"] for problem in problems} == {"test"}
    assert counts == {"read": 8, "left out: another split": 5, "kept": 3}
    summary = {"problems": counts, "first left out": {"another split": ["511", "4", "3", "2", "601"]}}
    assert read_summary(tmp_path / "problems.jsonl") == summary


def test_splits_hold_every_task_once():
    firsts = {"prompt": 1, "test": 11, "validation": 511, "train": 601, "other": 975}
    assert {split: next(task for task in range(1, 1000) if split_of(task) == split) for split in firsts} == firsts
    assert sum(map(len, SPLITS.values())) == 974


def test_the_assertions_that_the_prompt_shows_are_public_and_decide(tmp_path):
    for solutions in (True, False):
        [problem, *_], _ = converted(tmp_path / str(solutions), ROWS, solutions=solutions)
        assert problem.record.get("human_solutions") == (["def plus_11(x):\n  return x + 11"] if solutions else None)
    assert problem.tests == problem.public_tests == problem.hidden_tests
    assert (problem.tests.asserts, problem.tests.fn_name) == (True, "plus_11")
    assert problem.tests.outputs == tuple(task(11)["test_list"])
    assert all(shown in text for shown in problem.tests.outputs for text in (problem.question, problem.instruction))
    assert "\r" not in json.dumps(problem.record)


def test_three_solved_tasks_come_before_the_task_if_asked(tmp_path):
    [problem, *_], _ = converted(tmp_path, ROWS, shots=3)
    text = problem.instruction
    places = [text.index(task(number)["text"]) for number in (2, 3, 4, 11)]
    assert places == sorted(places)
    assert [text.count(shown) for shown in ("```python", "return x + 4", "return x + 11")] == [3, 1, 0]


def test_the_sanitized_release_is_read_as_the_full_one(tmp_path):
    full = task(11)
    sanitized = {"task_id": 11, "prompt": full["text"], "code": f"import math\n{full['code']}"}
    sanitized["test_imports"] = ["from math import floor"]
    sanitized["test_list"] = [f"assert floor(plus_11({x})) == {x + 11}" for x in (0, 1, 2)]
    [problem], _ = converted(tmp_path, [sanitized])
    [same], _ = converted(tmp_path / "full", [full])
    assert problem.question.partition("assert")[0] == same.question.partition("assert")[0]

    async def judged(program):
        async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
            return (await judge.judge(program, problem.tests)).passing

    assert asyncio.run(judged("def plus_11(x):\n    return x + 11.5")) == [True] * 3
    assert asyncio.run(judged("def plus_11(x):\n    return x + 12")) == [False] * 3


@pytest.mark.parametrize(
    ("rows", "shots", "says"),
    [
        ([task(601)], 0, "another split"),
        ([task(2), task(3), task(11)], 3, "no task 4"),
        ([task(2), task(3, code=None), task(4), task(11)], 3, r"mbpp\.jsonl, line 2: field 'code'"),
    ],
)
def test_a_file_without_a_task_of_the_split_or_an_example_of_the_prompt_is_refused(tmp_path, rows, shots, says):
    with pytest.raises(UserError, match=says):
        converted(tmp_path, rows, shots=shots)
    assert not (tmp_path / "problems.jsonl").exists()
