"""HumanEval and its like as problems: which calls a check makes, what it needs, and which references are left out."""

# Rows and programs stand on one line each.
# ruff: noqa: E501

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import write_lines
from test_asserting import VALUES

from cobalt.datasets.humaneval import HumanEvalSettings, humaneval, read_tasks, recorded_suite
from cobalt.datasets.recorder import recorded, source_of
from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.judge.inside.numpy_stand_in import np
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


def plus_row(**fields):
    """A row in the schema of EvalPlus's HumanEval+: the mean of a list, with a tolerance."""
    return {
        "task_id": "HumanEval/1",
        "prompt": 'def mean(numbers):\n    """The mean."""\n',
        "entry_point": "mean",
        "canonical_solution": "    return sum(numbers) / len(numbers)\n",
        "test": "import numpy as np\n\ndef assertion(out, exp, atol):\n"
        "    if isinstance(out, np.ndarray) or not np.allclose(out, exp, rtol=1e-07, atol=atol):\n"
        "        raise AssertionError\n\n"
        "def check(candidate):\n    inputs = [[[1, 2]], [[0.1, 0.2, float('inf')]]]\n    results = [1.5, float('inf')]\n"
        "    for inp, exp in zip(inputs, results):\n        assertion(candidate(*inp), exp, 1e-6)\n\ncheck(mean)\n",
    } | fields


def mbpp_plus_row(**fields):
    """A row in the schema of EvalPlus's MBPP+: the common elements of two tuples."""
    return {
        "task_id": 2,
        "code": "def common(a, b):\n    return tuple(set(a) & set(b))\n",
        "prompt": "Write a function to find what two tuples have in common.",
        "source_file": "somewhere",
        "test_imports": ["import math"],
        "test_list": ["assert set(common((1, 2), (2, 3))) == {math.floor(2.5)}"],
        "test": "inputs = [[(1, 2), (2, 3)], [(), (1,)]]\nresults = [(2,), ()]\n"
        "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assert set(common(*inp)) == set(exp)\n",
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


@pytest.mark.parametrize(
    ("out", "exp", "close"),
    [
        (1.0, 1.0 + 1e-9, True), (1, 2, False), ([1.0, 2.0], [1.0, 2.0 + 1e-9], True), ([1.0], [1.0, 2.0], False),
        (1.0, [1.0], False), (math.inf, math.inf, True), (math.nan, math.nan, True), (math.inf, 1.0, False), (1.0, math.inf, False), ((), [], True),
    ],
)  # fmt: skip
def test_the_stand_in_for_numpy_compares_numbers_by_both_tolerances(out, exp, close):
    assert np.allclose(out, exp, rtol=1e-7, atol=1e-6) is close
    if close:
        np.testing.assert_allclose(out, exp, atol=1e-6)
    else:
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(out, exp, atol=1e-6)


def tasks(tmp_path, rows, data_set="humaneval", tally=None):
    path = write_lines(tmp_path / "rows.jsonl", rows)
    tally = Tally() if tally is None else tally
    return list(read_tasks(HumanEvalSettings(tmp_path / "o.jsonl", path, data_set), tally))


def test_a_check_has_the_prompts_helpers_and_not_the_function(tmp_path):
    [task] = tasks(tmp_path, [row()])
    assert "def encode" in task.check
    assert "def decode" not in task.check
    assert task.check.rstrip().endswith("check(decode)")
    assert task.check.startswith("import random\nrandom.seed(0)\n")
    assert task.reference.endswith(row()["canonical_solution"])
    assert row()["prompt"].strip() in task.question
    assert len(task.shown) == 0


def test_a_check_that_calls_itself_is_called_once_and_needs_no_numpy(tmp_path):
    [task] = tasks(tmp_path, [plus_row()], "humaneval_plus")
    assert task.check.count("check(mean)") == 1
    assert "import numpy" not in task.check
    assert "class np" in task.check


def test_mbpp_plus_shows_its_assertions(tmp_path):
    [task] = tasks(tmp_path, [mbpp_plus_row()], "mbpp_plus")
    assert (task.id, task.fn_name) == ("MBPP+/2", "common")
    assert mbpp_plus_row()["test_list"][0] in task.question
    assert task.shown.inputs == ("import math\ncommon((1, 2), (2, 3))",)
    assert task.shown.outputs[0].startswith("import math\n")


@pytest.mark.parametrize(
    ("data_set", "bad"),
    [
        ("humaneval", row(test=None)), ("humaneval", row(prompt="def decode(word:")), ("humaneval", row(test="def check(")),
        ("mbpp_plus", mbpp_plus_row(test_list=["assert 1"])), ("mbpp_plus", mbpp_plus_row(task_id=None)), ("humaneval_plus", plus_row(test=3)),
    ],
)  # fmt: skip
def test_malformed_rows_are_left_out_and_counted(tmp_path, data_set, bad):
    tally = Tally()
    good = {"humaneval": row, "humaneval_plus": plus_row, "mbpp_plus": mbpp_plus_row}[data_set]()
    assert len(tasks(tmp_path, [bad, good], data_set, tally)) == 1
    assert (tally["read"], tally["malformed"]) == (2, 1)
    assert "line 1: " in tally.first["malformed"][0]


def test_rows_of_humaneval_are_not_taken_for_those_of_humaneval_plus(tmp_path):
    assert tasks(tmp_path, [plus_row()], "humaneval_plus")[0].id == "HumanEval/1"
    tally = Tally()
    tasks(tmp_path, [plus_row(), row()], "humaneval_plus", tally)
    assert re.search(r"line 2: field 'test'.*--data_set humaneval", tally.first["malformed"][0])


@pytest.fixture
async def judge():
    async with LocalJudge(JudgeSettings(concurrency=1, cpu_seconds=1.0)) as judge:
        yield judge


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("prompt", "program"),
    [
        (
            row()["prompt"],
            "def decode(word):\n    return next(w for w in (word[-1] + word[:-1],) if encode(w) == word)",
        ),
        (
            "import string\nfrom typing import List\n" + row()["prompt"],
            "def decode(w: List) -> str:\n    return w[-1] + w[:-1]",
        ),
    ],
)
async def test_a_program_has_what_the_prompt_gives_it(tmp_path, judge, prompt, program):
    [task] = tasks(tmp_path, [row(prompt=prompt)])
    suite = await recorded_suite(task, judge)
    assert suite is not None
    assert (await judge.judge(program, suite)).all_passed
    assert TestSuite.parse(suite.to_json()) == suite


@pytest.mark.sandbox
async def test_programs_are_judged_by_the_calls_that_the_check_makes(tmp_path, judge):
    [task] = tasks(tmp_path, [row()])
    suite = await recorded_suite(task, judge)
    assert suite is not None
    assert suite.inputs[0].count("\n") == 19
    assert (await judge.judge(task.reference, suite)).all_passed
    wrong = await judge.judge("def decode(word):\n    return word[::-1]", suite)
    assert wrong.verdicts[0].kind is VerdictKind.WRONG_ANSWER


@pytest.mark.sandbox
async def test_plus_checks_run_without_numpy_and_with_its_tolerance(tmp_path, judge):
    [task] = tasks(tmp_path, [plus_row()], "humaneval_plus")
    suite = await recorded_suite(task, judge)
    close = "def mean(numbers):\n    return sum(numbers) / len(numbers) + 1e-8"
    far = close.replace("1e-8", "1e-3")
    assert [(await judge.judge(program, suite)).all_passed for program in (close, far)] == [True, False]


@pytest.mark.sandbox
async def test_the_problems_are_written_and_counted(tmp_path, judge):
    wrong = mbpp_plus_row(task_id=3, test="assert common((1,), (1,)) == 3\n")
    rows = write_lines(tmp_path / "rows.jsonl", [mbpp_plus_row(), mbpp_plus_row(), wrong])
    summary = (await humaneval(HumanEvalSettings(tmp_path / "o.jsonl", rows, "mbpp_plus"), judge)).summary
    [problem] = load_problems(tmp_path / "o.jsonl")
    assert problem.tests.inputs == problem.public_tests.inputs + problem.hidden_tests.inputs
    assert problem.tests.positions_of(problem.hidden_tests) == [1]
    assert "`common`" in problem.instruction
    assert [summary["problems"][name] for name in ("read", "kept", "calls")] == [3, 1, 2]
    assert summary["first left out"]["an id that an earlier row has"] == ["MBPP+/2"]


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "fields",
    [
        {"canonical_solution": "    return word\n"},
        {"canonical_solution": "    while True: pass\n"},
        {"canonical_solution": "    return (\n"},
        {"test": "def check(candidate):\n    assert candidate(object()) == 1\n"},
        {"test": "def check(candidate):\n    pass\n"},
        {"test": "import sys\ndef check(candidate):\n    candidate('ab')\n    sys.exit()\n"},
        {"test": "import os\ndef check(candidate):\n    candidate('ab')\n    os.write(1, b'[')\n"},
        {"canonical_solution": "    raise SystemExit\n"},
        {
            "canonical_solution": "    import sys\n    print(file=sys.__stdout__)\n    print(word, file=sys.__stdout__)\n    return word[-1] + word[:-1]\n"
        },
        {
            "test": "import os\nseen = []\ndef check(candidate):\n    assert candidate(repr(id(seen)) + os.urandom(4).hex())\n"
        },
    ],
)
async def test_a_reference_that_is_refused_is_left_out(tmp_path, judge, fields):
    [task] = tasks(tmp_path, [row(**fields)])
    assert await recorded_suite(task, judge) is None
