"""Data sets into problems: what a row becomes, which programs pass its tests, and which rows are left out.

TACO's rules are in test_taco.py, and how LiveCodeBench packs its tests in test_livecodebench.py.
"""

import inspect
import json
import math
import re
from dataclasses import replace
from datetime import date
from functools import partial

import pytest
import test_taco
from hypothesis import given
from hypothesis import strategies as st
from support import FakeJudge, write_lines
from test_calling import VALUES
from test_livecodebench import FUNCTIONAL, cases, function_row, packed, stdin_row

from cobalt.datasets.apps import AppsSettings, apps
from cobalt.datasets.assertions import assertion_suite, imports_for
from cobalt.datasets.humaneval import REFUSED, HumanEvalSettings, humaneval, read_tasks
from cobalt.datasets.livecodebench import LiveCodeBenchSettings, livecodebench
from cobalt.datasets.mbpp import OTHER_SPLIT, SPLITS, MbppSettings, mbpp, split_of
from cobalt.datasets.recorder import recorded, source_of
from cobalt.datasets.taco import TacoSettings, taco
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.judge.prelude import GRADERS
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary
from cobalt.stage.tally import MALFORMED, REPEATED, Tally

# Rows


def apps_row(number=0, difficulty="introductory", tests=None, **fields):
    tests = tests or {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "9\n"]}
    return {
        "problem_id": number,
        "question": f"Print a square ({number}).",
        "solutions": json.dumps(["print(int(input()) ** 2)"]),
        "input_output": json.dumps(tests),
        "difficulty": difficulty,
        "url": "",
        "starter_code": "",
    } | fields


def plus_row(**fields):
    return {
        "question": "Print a square.",
        "difficulty": "interview",
        "starter_code": "def solve():",
        "canonical_solution": "def solve():\n    print(int(input()) ** 2)",
        "inputs": ["2\n"],
        "outputs": ["4\n"],
    } | fields


def mbpp_row(number=11, **fields):
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


PROMPT = (
    "import string\n\ndef encode(word):\n    return word[1:] + word[0]\n\ndef decode(word):\n    '''Undo encode.'''\n"
)
CHECK = """METADATA = {}

def check(candidate):
    from random import choice
    for _ in range(20):
        word = ''.join(choice(string.ascii_letters) for _ in range(9))
        assert candidate(encode(word)) == word
"""


def humaneval_row(name="HumanEval/0", body="return word[-1] + word[:-1]", check=CHECK, **fields):
    """Shift the letters of a word back, with a helper in the prompt."""
    solution = f"    {body}\n"
    row = {"task_id": name, "prompt": PROMPT, "entry_point": "decode", "canonical_solution": solution, "test": check}
    return row | fields


# By data set its stage, the settings, and who judges where a test does not say so.
STAGES = {
    "livecodebench": (livecodebench, LiveCodeBenchSettings, None),
    "mbpp": (mbpp, MbppSettings, None),
    "humaneval": (humaneval, HumanEvalSettings, FakeJudge()),
    "apps": (apps, AppsSettings, FakeJudge()),
    "apps_plus": (apps, partial(AppsSettings, data_set="apps_plus"), FakeJudge()),
    "taco": (taco, lambda output, *of, **more: TacoSettings(output.parent, *of, dev_size=0, **more), FakeJudge(True)),
}


async def converted(folder, name, rows, judge=None, **settings):
    """The problems that the converter of a data set makes of rows, and its summary."""
    folder.mkdir(exist_ok=True)
    source, output = folder / "source.json", folder / "train.jsonl"
    source.write_text(json.dumps(rows))
    stage, settings_of, usual = STAGES[name]
    outcome = stage(settings_of(output, source, **settings), *([judge or usual] if usual else []))
    summary = (await outcome if inspect.isawaitable(outcome) else outcome).summary
    assert read_summary(output) == summary
    return load_problems(output), summary


# What a row becomes


SQUARES = TestSuite(("2\n", "3\n"), ("4\n", "9\n"))
CALL = {"fn_name": "square", "inputs": [[2], [3]], "outputs": [[4], [9]]}
LINES = {"inputs": [["2", "5 6"]], "outputs": [["11"]]}
LONG = "9" * 5000  # an integer beyond Python's limit
OF_KEYS = f"f({{1: {hex(10**5000 - 1)}}})"
LONGEST = function_row(private_test_cases=json.dumps(cases(FUNCTIONAL, ("[]\n0", "[]"), (f"[{LONG}]\n-{LONG}", LONG))))
READ = TestSuite(("3\n", "4\n", "5\n"), ("9\n", "16\n", "25\n"))
CALLED = TestSuite(('["a", "b c"]\n2\n', "[]\n0\n", f"[{LONG}]\n-{LONG}\n"), ('["b c"]', "[]", LONG), "longest")
AS_TEXT = TestSuite(('["a", "b c"]\n2', "[]\n0", f"[{LONG}]\n-{LONG}"), ('["b c"]', "[]", LONG))
GRADER = {"prelude": GRADERS, "comparison": "lines"}
ASSERTED = TestSuite(tuple(f"plus_11({x})" for x in (0, 1, 2)), tuple(mbpp_row()["test_list"]), "plus_11", True)
CUTS = {
    "A\nExample 1:\n\nB": "A",
    "A\nSample Input 1\n\nB": "A",
    "A\nSample Input 1\n\nB\nExample 1:\n\nC": "A\nSample Input 1\n\nB",
    "A Example 1: B": "A Example 1: B",
}


CALLED_SQUARE = TestSuite(("2\n", "3\n"), ("4", "9"), "square")
NUMBERS = apps_row(input_output=f'{{"fn_name": "f", "inputs": [[{{"1": {LONG}}}]], "outputs": [1]}}', solutions="")
PLUS_CALL = plus_row(starter_code="def square(x):", inputs=[[2]], outputs=[4])
# A data set's name, its row, all tests, which of them are public and hidden, and what the statement is.
BECOMES = [
    ("apps", apps_row(), SQUARES, [], [0, 1], r"Print a square \(0\)\."),
    ("apps", apps_row(tests=LINES, solutions=""), TestSuite(("2\n5 6",), ("11",)), [], [0], ""),
    ("apps", apps_row(tests=CALL, starter_code="def square(x):"), CALLED_SQUARE, [], [0, 1], r".*def square\(x\):.*"),
    ("apps", NUMBERS, TestSuite((OF_KEYS,), (f"assert {OF_KEYS} == 1",), "f", True), [], [0], ""),
    ("apps_plus", plus_row(), SQUARES.select([0]), [], [0], r"Print a square\."),
    ("apps_plus", PLUS_CALL, CALLED_SQUARE.select([0]), [], [0], r".*def square\(x\):.*"),
    ("livecodebench", stdin_row(), replace(READ, **GRADER, top_level_return=True), [0], [1, 2], ".*Sample Input 1.*"),
    ("livecodebench", LONGEST, replace(CALLED, **GRADER), [0], [1, 2], r".*def longest\(self.*"),
    ("paper", stdin_row(), READ, [0], [1, 2], "Print the square."),
    *(("paper", LONGEST | {"question_content": text}, AS_TEXT, [0], [1, 2], cut) for text, cut in CUTS.items()),
    ("mbpp", mbpp_row(), ASSERTED, [0, 1, 2], [0, 1, 2], ".*".join(["", *map(re.escape, ASSERTED.outputs), ""])),
]


IDS = {"apps": "APPS/0", "apps_plus": "APPS+/0", "mbpp": "MBPP/11"}


@pytest.mark.parametrize(("name", "row", "tests", "public", "hidden", "question"), BECOMES)
async def test_a_row_becomes_a_problem(tmp_path, name, row, tests, public, hidden, question):
    settings, name = ({"paper_mode": True}, "livecodebench") if name == "paper" else ({}, name)
    [problem], _ = await converted(tmp_path, name, [row], **settings)
    assert problem.tests == tests
    assert problem.public_tests == (tests.select(public) if public else TestSuite((), ()))
    assert problem.hidden_tests == tests.select(hidden)
    assert re.fullmatch(question or ".*", problem.question, re.DOTALL)
    assert problem.question in problem.instruction
    assert ("reads from standard input" in problem.instruction) == (tests.fn_name is None)
    assert (f"`{tests.fn_name}`" in problem.instruction) == (tests.fn_name is not None)
    for field in ("difficulty", "platform", "contest_date", "question_id"):
        assert problem.record.get(field) == row.get(field)
    assert problem.id == IDS.get(name, row.get("question_id")) and "human_solutions" not in problem.record
    assert "\r" not in json.dumps(problem.record)


# What its tests accept


SHORT = """class Solution:
    def longest(self, words: List[str], least: int) -> List[str]:
        return tuple(word for word in words if len(word) >= least)
"""
PRELUDE = "print(math.prod([int(input())] * 2))"
RETURN = "print(int(input()) ** 2, end=' \\n\\n')\nif True:\n    return\n1 / 0"
FUTURE = "from __future__ import annotations\n@cache\ndef f(n: Any): return n * n\nprint(f(int(input())))"
SANITIZED = {"task_id": 11, "prompt": "Add 11.", "code": "import math\ndef plus_11(x): return x + 11"}
SANITIZED |= {"test_imports": ["from math import floor"], "test_list": ["assert floor(plus_11(1)) == 12"] * 3}
NUMBERED, NESTED, DEEP = [{"1": 10, "2": 20}], [[{"1": 10}, {"-2": 20}]], [{"1": {"2": 3}}]
# Calls whose values are dictionaries: their keys may be numbers or texts, and their values tuples or lists.
DICTIONARIES = {"fn_name": "f", "inputs": [[{"3": 4}]], "outputs": [{"1": [2, {"5": 6.0}]}]}


USES_PROMPT = "def decode(word):\n    return next(w for w in (word[-1] + word[:-1],) if encode(w) == word)"
TYPED = humaneval_row(prompt="from typing import List\n" + PROMPT)
JUDGED = [
    *(("livecodebench", stdin_row(), program, True) for program in (PRELUDE, RETURN, FUTURE)),
    ("livecodebench", function_row(), SHORT, True),
    *(("paper", stdin_row(), program, False) for program in (PRELUDE, RETURN)),
    ("paper", stdin_row(), "print(int(input()) ** 2)", True),
    *(("mbpp", SANITIZED, f"def plus_11(x):\n    return x + {n}", passes) for n, passes in ((11.5, True), (12, False))),
    ("humaneval", humaneval_row(), "def decode(word):\n    return word[::-1]", False),
    ("humaneval", humaneval_row(), USES_PROMPT, True),
    ("humaneval", TYPED, "def decode(w: List) -> str:\n    return w[-1] + w[:-1]", True),
    *(
        ("apps", apps_row(tests=DICTIONARIES, solutions=""), f"def f(x): return x == {{3: 4}} and {value}", passes)
        for value, passes in (("{1: (2, {5: 6})}", True), ("{'1': [2, {'5': 6}]}", True), ("{1: [2]}", False))
    ),
]


@pytest.mark.sandbox
@pytest.mark.parametrize(("name", "row", "program", "passes"), JUDGED)
async def test_programs_are_judged_as_the_data_sets_own_graders_do(tmp_path, name, row, program, passes):
    settings, name = ({"paper_mode": True}, "livecodebench") if name == "paper" else ({}, name)
    async with LocalJudge(JudgeSettings(concurrency=1, paper=bool(settings), paper_guard=False)) as judge:
        [problem], _ = await converted(tmp_path, name, [row], judge, **settings)
        assert (await judge.judge(program, problem.tests)).pass_rate == passes


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("arguments", "solution", "alone"),
    [
        (NUMBERED, "sorted(x) == [1, 2]", "f({1: 10, 2: 20})"),
        (NUMBERED, "sorted(x) == ['1', '2']", "f({1: 10, 2: 20})"),
        (NESTED, "[*x[0], *x[1]] == [1, -2]", '[{"1": 10}, {"-2": 20}]\n'),
        (NESTED, "[*x[0], *x[1]] == ['1', '-2']", '[{"1": 10}, {"-2": 20}]\n'),
        (DEEP, "x == {1: {'2': 3}}", "f({1: {'2': 3}})"),
        (DEEP, "x == {1: {2: 3}}", "f({1: {'2': 3}})"),
        ([{"a": 1}], "x == {'a': 1}", '{"a": 1}\n'),
    ],
)
@pytest.mark.parametrize("name", ["apps", "apps_plus"])
async def test_solutions_decide_whether_keys_are_whole_numbers_and_the_grader_without_them(
    tmp_path, name, arguments, solution, alone
):
    program = f"def f(x):\n    return {solution}\n"
    tests = {"inputs": [arguments], "outputs": [True]}
    rows = [plus_row(starter_code="def f(x):", canonical_solution=one, **tests) for one in (program, None)]
    if name == "apps":
        tests["fn_name"] = "f"
        rows = [apps_row(n, tests=tests, solutions=one) for n, one in enumerate([json.dumps([program]), ""])]
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        [decided, assumed], _ = await converted(tmp_path, name, rows, judge)
        assert (await judge.judge(program, decided.tests)).all_passed
    assert assumed.tests.inputs == (alone,)
    assert [decided.id[-2:], assumed.id[-2:]] == ["/0", "/1"]


async def test_recorded_solutions_decide_what_tests_mean_and_the_likelier_reading_holds_without_them(tmp_path):
    solutions = ["def square(x):\n    return [x * x]"]  # in the data set their JSON, in copies of it the list
    rows = [apps_row(0), apps_row(1, tests=CALL, solutions=solutions), apps_row(2, tests=CALL, solutions="")]
    judge = FakeJudge(lambda _, suite: suite.outputs[0] == "[4]")
    [_, decided, assumed], _ = await converted(tmp_path, "apps", rows, judge)
    assert (decided.tests.outputs, assumed.tests.outputs) == (("[4]", "[9]"), ("4", "9"))
    assert [suite.outputs[0] for _, suite in judge.asked] == ["4", "[4]"]  # not of tests with one meaning
    [refused], _ = await converted(tmp_path / "refused", "apps", rows[1:2])
    assert refused.tests.outputs == ("4", "9")
    judge = FakeJudge(lambda code, suite: code.endswith("solve()\n") and suite.outputs == ("4 5",))
    [called], _ = await converted(tmp_path / "plus", "apps_plus", [plus_row(outputs=[["4", "5"]])], judge)
    assert called.tests.outputs == ("4 5",)


# HumanEval's calls


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


BODIES = [
    "return word",
    "while True: pass",
    "return (",
    "import sys; print(file=sys.__stdout__); print(word, file=sys.__stdout__); return word[-1] + word[:-1]",
]
CHECKS = [
    "assert candidate('ab') == 3",
    "assert candidate(object()) == 1",
    "pass",
    "import os; candidate('ab'); os.write(1, b'[')",
    "import os; assert candidate(repr(id([])) + os.urandom(4).hex())",
]


@pytest.mark.sandbox
async def test_a_reference_that_its_check_or_the_judge_refuses_is_left_out_and_counted(tmp_path):
    rows = [humaneval_row(), humaneval_row(), *(humaneval_row(body, body) for body in BODIES)]
    rows += [humaneval_row(check, check=f"def check(candidate):\n    {check}\n") for check in CHECKS]
    async with LocalJudge(JudgeSettings(concurrency=1, cpu_seconds=1.0)) as judge:
        [problem], summary = await converted(tmp_path, "humaneval", rows, judge)
    assert problem.id == "HumanEval/0"
    assert problem.tests == problem.hidden_tests and len(problem.public_tests) == 0
    assert "`decode`" in problem.instruction and PROMPT.strip() in problem.question
    assert [summary["problems"][name] for name in ("read", "kept", "calls", f"left out: {REFUSED}")] == [11, 1, 20, 9]
    assert summary["first left out"][REPEATED] == ["HumanEval/0"]


# Rows that are left out


async def test_rows_of_other_difficulties_or_without_tests_are_left_out_and_counted(tmp_path):
    """Null and NaN, as tables have them, stand for no value: such a difficulty is unknown, and its row is kept."""
    nothing = float("nan")
    rows = [apps_row(0), apps_row(1, "interview"), apps_row(2, "interview", {"inputs": [], "outputs": []})]
    rows += [apps_row(3 + n, "interview", input_output=value) for n, value in enumerate(("", None, nothing))]
    problems, summary = await converted(tmp_path, "apps", rows, difficulty=("interview",))
    assert [problem.id for problem in problems] == ["APPS/1"]
    assert summary["rows"]["read"] == 6
    assert summary["kept"] == {"interview": 1}
    without = [f"APPS/{number}" for number in (2, 3, 4, 5)]
    assert summary["first left out"] == {"another difficulty": ["APPS/0"], "no tests that can be read": without}
    rows = [apps_row(0, None), apps_row(1, nothing, CALL, solutions=None, starter_code=nothing)]
    problems, summary = await converted(tmp_path / "unknown", "apps", rows)
    assert [(problem.id, problem.record["difficulty"]) for problem in problems] == [("APPS/0", None), ("APPS/1", None)]
    assert summary["kept"]["unknown difficulty"] == 2
    assert "NaN" not in (tmp_path / "unknown" / "train.jsonl").read_text()


@pytest.mark.parametrize("again", [apps_row(0), apps_row(0, "interview"), apps_row(0, input_output="")])
async def test_an_id_that_occurs_twice_is_that_of_the_first_row_also_in_a_run_that_continues(tmp_path, again):
    for _ in range(2):
        rows = [apps_row(0), apps_row(1), again]
        problems, summary = await converted(tmp_path, "apps", rows, difficulty=("introductory",))
        assert [problem.id for problem in problems] == ["APPS/0", "APPS/1"]
        assert summary["first left out"] == {REPEATED: ["APPS/0"]}


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(None, None, "123"), (1, None, "23"), (None, 1, "12"), (1, 1, "2")]
)
async def test_date_windows_include_their_first_and_last_day(tmp_path, first, last, expected):
    days = {"1": "2025-01-31T23:59:59", "2": "2025-02-01T20:30:00", "3": "2025-02-02"}
    rows = [stdin_row(number, contest_date=day) for number, day in days.items()]
    bounds = {"start_date": first and date(2025, 2, first), "end_date": last and date(2025, 2, last)}
    problems, summary = await converted(tmp_path, "livecodebench", rows, **bounds)
    assert "".join(problem.id for problem in problems) == expected
    left = 3 - len(expected)
    counts = {"read": 3, "kept": len(expected), "of them called functions": 0}
    assert summary["problems"] == counts | ({"left out: outside the dates": left} if left else {})


RELEASE = [mbpp_row(number) for number in (601, 2, 3, 4, 11, 12, 510, 511)]


async def test_a_split_is_kept_in_its_order_after_three_solved_tasks_and_with_its_programs_if_asked(tmp_path):
    problems, summary = await converted(tmp_path, "mbpp", RELEASE[::-1], shots=3, solutions=True)
    assert problems[0].record["human_solutions"] == ["def plus_11(x):\n  return x + 11"]
    assert [problem.id for problem in problems] == ["MBPP/11", "MBPP/12", "MBPP/510"]
    counts = {"read": 8, "left out: another split": 5, "kept": 3}
    assert summary == {"problems": counts, "first left out": {"another split": ["511", "601", "2", "3", "4"]}}
    text = problems[0].instruction
    offsets = [text.index(mbpp_row(number)["text"]) for number in (2, 3, 4, 11)]
    assert offsets == sorted(offsets)
    assert [text.count(shown) for shown in ("```python", "return x + 4", "return x + 11")] == [3, 1, 0]


def test_splits_hold_every_task_once():
    firsts = {"prompt": 1, "test": 11, "validation": 511, "train": 601, "other": 975}
    assert {split: next(task for task in range(1, 1000) if split_of(task) == split) for split in firsts} == firsts
    assert sum(map(len, SPLITS.values())) == 974


@pytest.mark.parametrize(
    ("name", "rows", "settings", "says"),
    [
        ("mbpp", [mbpp_row(601)], {}, OTHER_SPLIT),
        ("mbpp", [mbpp_row(2), mbpp_row(3), mbpp_row(11)], {"shots": 3}, r"\(2, 3, 4\).*\b4\b"),
        ("mbpp", [mbpp_row(2, code=None), *RELEASE[2:]], {"shots": 3}, r"source\.json, item 1: .*'code'"),
        ("apps_plus", [{"question": 1}], {}, r"source\.json, item 1: .*question"),
        ("apps_plus", [1], {}, r"source\.json, item 1"),
        ("taco", [test_taco.row(0, solutions=[])], {}, "--dev_size"),
        ("taco", [test_taco.row(0)], {"public_tests": 8}, "public_tests"),
        ("livecodebench", [stdin_row()], {"start_date": date(2025, 2, 2), "end_date": date(2025, 2, 1)}, "end_date"),
    ],
)
async def test_a_file_without_a_problem_and_settings_that_cannot_work_are_refused(tmp_path, name, rows, settings, says):
    with pytest.raises(UserError, match=says):
        await converted(tmp_path, name, rows, **settings)
    assert not (tmp_path / "train.jsonl").exists()
    with pytest.raises(UserError, match="--input_file"):
        AppsSettings(tmp_path / "o.jsonl", data_set="apps_plus")


GOOD = {
    "livecodebench": {"a": stdin_row("a"), "b": stdin_row("b")},
    "mbpp": {"MBPP/11": mbpp_row(11), "MBPP/13": mbpp_row(13)},
    "apps": {"APPS/0": apps_row(0), "APPS/1": apps_row(1)},
    "taco": {0: test_taco.row(0), 1: test_taco.row(1)},
}


BASES = {
    "a program of livecodebench": stdin_row(),
    "a function of livecodebench": function_row(),
    "a task of mbpp": mbpp_row(12),
    "a problem of apps": apps_row(2),
    "a row of taco": test_taco.row(2),
}
UNPAIRED = [('["\\ud800"]\n2', '"a"'), ("[]\n2", '"\\ud800"'), ("\udfff", "1")]
# What is wrong with a row, by the fields that replace its own; "": the message names the field.
BAD = {
    "a program of livecodebench": [
        ("", {"question_id": 3}),
        ("", {"contest_date": "soon"}),
        ("", {"public_test_cases": "["}),
        *(("", {"public_test_cases": text}) for text in ('[{"input": "1"}]', "{}")),
        *(("", {"private_test_cases": text}) for text in ("!", "[]")),
        ("'functional'", {"private_test_cases": packed(cases(FUNCTIONAL, ("1", "1")))}),
    ],
    "a function of livecodebench": [
        ("", {"metadata": "["}),
        *(("'func_name'", {"metadata": text}) for text in ("{}", '{"func_name": "a b"}')),
        *(
            (says, {"private_test_cases": packed(cases(FUNCTIONAL, test))})
            for says, *tests in (("'input", ("x", "1")), ("'output", ("1", "x")), ("surrogate", *UNPAIRED))
            for test in tests
        ),
    ],
    "a task of mbpp": [
        ("", {"task_id": "12"}),
        ("", {"text": None}),
        ("", {"test_list": "assert plus_12(1) == 13"}),
        (r"\b0\b", {"test_list": []}),
        ("assert other", {"test_list": ["assert other(1) == 2"]}),
        ("reference", {"code": "def plus_12(x:"}),
        ("setup", {"test_setup_code": "import random\nrandom.seed(0)"}),
    ],
    "a problem of apps": [("", {"question": None}), ("", {"difficulty": 3}), ("", {"problem_id": None})],
    "a row of taco": [
        *(("", {"id": value}) for value in (None, 2.5)),
        ("", {"question": 3}),
        *(("", {"solutions": value}) for value in ("[", [1])),
    ],
}


def counts_of(summary, reason):
    return [counts[name] for counts in summary.values() for name in counts if name.endswith(reason) and counts[name]]


@pytest.mark.parametrize(("what", "says", "fields"), [(what, *one) for what, rows in BAD.items() for one in rows])
async def test_a_row_that_cannot_be_read_is_left_out_counted_and_named_by_place_and_field(tmp_path, what, says, fields):
    name, row, says = what.split()[-1], BASES[what] | fields, says or next(iter(fields))
    first, second = GOOD[name].values()
    problems, summary = await converted(tmp_path, name, [first, row, first, second])
    assert [problem.id for problem in problems] == [*GOOD[name]]
    [named] = summary["first left out"].pop(MALFORMED)
    assert re.search(rf"source\.json, item 2: .*{says}", named)
    assert len(summary["first left out"].pop(REPEATED)) == 1
    assert [counts_of(summary, reason) for reason in (MALFORMED, REPEATED, "read")] == [[1], [1], [4]]
    with pytest.raises(UserError, match=rf"source\.json, item 1: .*{says}"):
        await converted(tmp_path / "none", name, [row])
    assert not (tmp_path / "none" / "train.jsonl").exists()


@pytest.mark.parametrize("fields", [{"check": None}, {"prompt": "def decode(:"}, {"check": "def check("}, {"name": 1}])
def test_a_task_of_humaneval_that_cannot_be_read_is_left_out_and_counted(tmp_path, fields):
    tally, source = Tally(), write_lines(tmp_path / "rows.jsonl", [humaneval_row(**fields), humaneval_row()])
    assert len(list(read_tasks(HumanEvalSettings(tmp_path / "o.jsonl", source), tally))) == 1
    assert (tally["read"], tally["malformed"]) == (2, 1)
    assert "line 1: " in tally.first["malformed"][0]


# Assertions: the calls in the script, everything else in the check


REFERENCE = "def add(a, b):\n    return a + b\nclass Node:\n    pass\ndef depth(node):\n    return 1"
# An assertion, its script, and its check where this is not the assertion as it is.
SPLIT = [
    ("assert add(1, 2) == 3", "add(1, 2)", ""),
    (" assert  add( [1],[2] )==[1, 2]  ", "add( [1],[2] )", "assert  add( [1],[2] )==[1, 2]"),
    ("assert set(add([1], [2])) == {1, 2}", "add([1], [2])", ""),
    ("assert not add(0, 0)", "add(0, 0)", ""),
    ("assert add(1, 2) == add(2, 1)", "add(1, 2)\nadd(2, 1)", ""),
    ("assert add(add(1, 2), 3) == 6, 'no'", "add(add(1, 2), 3)", "assert add(...) == 6, 'no'"),
    ("assert add('é', 'b') == 'éb'", "add('é', 'b')", ""),
    ("assert add(1, 2) == (3 if len({1: int(2)}) else 4)", "add(1, 2)", ""),
    ("assert add(int, 2) == 1", "add(int, 2)", ""),
    # A check needs the modules that it names, and not the objects of the program.
    ("assert math.isclose(add(1, 2), 3.0)", "add(1, 2)", "import math\nassert math.isclose(add(1, 2), 3.0)"),
    ("assert (depth(root)) == 1", "depth(root)", "assert depth(...) == 1"),
    ("assert depth(key=root) == depth(1)", "depth(key=root)\ndepth(1)", "assert depth(...) == depth(1)"),
]


@pytest.mark.parametrize(("setup", "before"), [("", ""), ("root = Node()\r\n", "root = Node()\n")])
def test_outermost_calls_are_the_script_and_an_assertion_without_the_program_is_the_check(setup, before):
    for assertion, script, check in SPLIT:
        name = script.partition("(")[0]
        suite = assertion_suite([assertion], REFERENCE, setup)
        assert suite == TestSuite((before + script,), (check or assertion,), name, True)
    assert len(assertion_suite([one for one, *_ in SPLIT[:9]], REFERENCE)) == 9
    checked = "import math\nx = sys.maxsize + math.pi\nfor string in f(): print(string)"
    assert imports_for(checked, {"f"}) == "import sys\n"


GOOD_ASSERTION = "assert add(1, 2) == 3"


@pytest.mark.parametrize(
    ("assertions", "setup"),
    [
        *(
            ([one], "")
            for one in (
                "assert other(1) == 1",
                "assert 1 == 1",
                "print(add(1, 2))",
                f"{GOOD_ASSERTION}; {GOOD_ASSERTION}",
                "assert add(1, 2) == ",
                "assert all(add(n, 1) > n for n in range(3))",
                "assert {add(1, 2): add(3, 4), add(5, 6): add(7, 8)} == {3: 7, 11: 15}",
                "assert (add(1, 2) if flag else add(3, 4)) == 3",
            )
        ),
        ([GOOD_ASSERTION, "assert sub(1, 2) == 3"], ""),
        ([], ""),
        # Of a setup the values would be taken for those of calls.
        *(([GOOD_ASSERTION], setup) for setup in ("import random\nrandom.seed(0)", "'text'", "add(1, 2)", "x = (")),
    ],
)
def test_assertions_that_cannot_be_split_and_setups_with_values_are_refused(assertions, setup):
    with pytest.raises(UserError, match="setup" if setup else ""):
        assertion_suite(assertions, REFERENCE + "\nsub = add", setup)
