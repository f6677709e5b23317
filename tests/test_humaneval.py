"""HumanEval as problems: which calls a check makes, what it needs, and which references are left out."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import write_lines
from test_asserting import VALUES

from cobalt.datasets.humaneval import HumanEvalSettings, humaneval, read_tasks, recorded_suite
from cobalt.datasets.recorder import recorded, source_of
from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.tally import Tally


def row(name="HumanEval/0", **fields):
    """A row in HumanEval's schema: shift the letters of a word back, with a helper in the prompt."""
    return {
        "task_id": name,
        "prompt": "import string\n\ndef encode(word):\n    return word[1:] + word[0]\n\n"
        'def decode(word):\n    """Undo encode."""\n',
        "entry_point": "decode",
        "canonical_solution": "    return word[-1] + word[:-1]\n",
        "test": "METADATA = {}\n\ndef check(candidate):\n    from random import choice\n"
        "    for _ in range(20):\n        word = ''.join(choice(string.ascii_letters) for _ in range(9))\n"
        "        assert candidate(encode(word)) == word\n",
    } | fields


@given(VALUES | st.sampled_from([(math.inf, -math.inf), [math.nan]]))
def test_recorded_arguments_are_equal_to_those_that_were_given(value):
    if any(kind in repr(value) for kind in ("Fraction", "Decimal")):
        with pytest.raises(TypeError):
            source_of(value)
        return
    read = eval(source_of(value))
    assert repr(read) == repr(value) if "nan" in repr(value) else read == value
    assert type(read) is type(value)


def test_calls_are_recorded_before_the_function_changes_its_arguments():
    program = "def f(x, key=0):\n    x.append(key)\n    return x"
    assert recorded(program, "f", "f([1], key=2)\nassert f([]) == [0]") == ["f([1], key=2)", "f([])"]
    with pytest.raises(AssertionError):
        recorded(program, "f", "assert f([]) == []")


def tasks(tmp_path, *rows, tally=None):
    settings = HumanEvalSettings(tmp_path / "o.jsonl", write_lines(tmp_path / "rows.jsonl", rows))
    return list(read_tasks(settings, Tally() if tally is None else tally))


@pytest.mark.parametrize("fields", [{"test": None}, {"prompt": "def decode(:"}, {"test": "def check("}, {"name": 1}])
def test_malformed_rows_are_left_out_and_counted(tmp_path, fields):
    tally = Tally()
    assert len(tasks(tmp_path, row(**fields), row(), tally=tally)) == 1
    assert (tally["read"], tally["malformed"]) == (2, 1)
    assert "line 1: " in tally.first["malformed"][0]


@pytest.fixture
async def judge():
    async with LocalJudge(JudgeSettings(concurrency=1, cpu_seconds=1.0)) as judge:
        yield judge


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("before", "program"),
    [
        ("", "def decode(word):\n    return next(w for w in (word[-1] + word[:-1],) if encode(w) == word)"),
        ("from typing import List\n", "def decode(w: List) -> str:\n    return w[-1] + w[:-1]"),
    ],
)
async def test_a_program_has_what_the_prompt_gives_it(tmp_path, judge, before, program):
    [task] = tasks(tmp_path, row(prompt=before + row()["prompt"]))
    suite = await recorded_suite(task, judge)
    assert suite is not None
    assert (await judge.judge(program, suite)).all_passed
    assert TestSuite.parse(suite.to_json()) == suite


@pytest.mark.sandbox
async def test_the_problems_are_written_and_counted(tmp_path, judge):
    wrong = row("HumanEval/1", test="def check(candidate):\n    assert candidate('ab') == 3\n")
    rows = write_lines(tmp_path / "rows.jsonl", [row(), row(), wrong])
    summary = (await humaneval(HumanEvalSettings(tmp_path / "o.jsonl", rows), judge)).summary
    [problem] = load_problems(tmp_path / "o.jsonl")
    assert problem.tests == problem.hidden_tests and len(problem.public_tests) == 0
    assert "`decode`" in problem.instruction and row()["prompt"].strip() in problem.question
    assert [summary["problems"][name] for name in ("read", "kept", "calls")] == [3, 1, 20]
    assert summary["first left out"]["an id that an earlier row has"] == ["HumanEval/0"]
    verdict = (await judge.judge("def decode(word):\n    return word[::-1]", problem.tests)).verdicts[0]
    assert verdict.kind is VerdictKind.WRONG_ANSWER


BODIES = [
    "return word",
    "while True: pass",
    "return (",
    "import sys; print(file=sys.__stdout__); print(word, file=sys.__stdout__); return word[-1] + word[:-1]",
]
CHECKS = [
    "assert candidate(object()) == 1",
    "pass",
    "import os; candidate('ab'); os.write(1, b'[')",
    "import os; assert candidate(repr(id([])) + os.urandom(4).hex())",
]
REFUSED = [{"canonical_solution": f"    {body}\n"} for body in BODIES]
REFUSED += [{"test": f"def check(candidate):\n    {check}\n"} for check in CHECKS]


@pytest.mark.sandbox
@pytest.mark.parametrize("fields", REFUSED, ids=[*BODIES, *CHECKS])
async def test_a_reference_that_is_refused_is_left_out(tmp_path, judge, fields):
    [task] = tasks(tmp_path, row(**fields))
    assert await recorded_suite(task, judge) is None
