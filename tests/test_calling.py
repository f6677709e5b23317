"""Function problems: typed arguments in, canonical JSON out, the program's own names and prints left alone."""

# Whole programs stand on one line each.
# ruff: noqa: E501

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_judge_programs import bench as bench

from cobalt.conversation import first_messages, load_prompts
from cobalt.errors import UserError
from cobalt.judge import JudgeSettings, LocalJudge, VerdictKind
from cobalt.judge.calling import call_input, callable_program, canonical_json
from cobalt.judge.wire import JudgeRequest
from cobalt.problem import Problem, TestSuite

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_canonical_json_is_equal_to_its_value_and_a_fixed_point(value):
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_have_the_same_text_exactly_when_python_calls_them_equal(left, right):
    assert (canonical_json(left) == canonical_json(right)) == (left == right)
    assert canonical_json(left) == canonical_json(left + 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ((1, (2.5, "a")), '[1, [2.5, "a"]]'),
        (3.0, "3"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.30000000000000004"),
        ({"b": 1, "a": 2, 3: (4,)}, '{"3": [4], "a": 2, "b": 1}'),
    ],
)
def test_canonical_json_of_values(value, text):
    assert canonical_json(value) == text


def test_a_set_has_no_json():
    with pytest.raises(TypeError):
        canonical_json({1})


def test_programs_without_a_function_are_left_as_they_are():
    assert callable_program("print(1)\n\n", None) == "print(1)\n\n"


def test_a_suite_names_its_function_only_where_it_has_one():
    plain = TestSuite(("1",), ("2",))
    assert plain.to_json() == '{"inputs": ["1"], "outputs": ["2"]}'
    calling = TestSuite(("1",), ("2",), "f")
    assert json.loads(calling.to_json())["fn_name"] == "f"
    assert TestSuite.parse(calling.to_json()) == calling
    assert JudgeRequest.parse(JudgeRequest("x", calling).to_payload()).suite == calling
    assert calling.select([0]) == calling


@pytest.mark.parametrize(
    ("fn_name", "message"), [(3, "not a string"), ("f(); evil", "no name of a function"), ("", "no name of a function")]
)
def test_a_bad_function_name_is_refused(fn_name, message):
    with pytest.raises(UserError, match=message):
        TestSuite.parse({"inputs": [], "outputs": [], "fn_name": fn_name})


def test_the_prompt_asks_for_the_function_only_where_there_is_one():
    record = {"id": 1, "question": "Add.", "test_cases": TestSuite(("1",), ("1",), "add_up").to_json()}
    prompts = load_prompts("paper")
    asked = first_messages(Problem.parse(record), prompts)[-1]["content"]
    assert "`add_up`" in asked
    assert "standard input" not in asked
    record["test_cases"] = TestSuite(("1",), ("1",)).to_json()
    asked = first_messages(Problem.parse(record), prompts)[-1]["content"]
    assert "reads from standard input and writes to standard output" in asked
    assert "Solution" not in asked


PASSING = {
    "typed arguments": ("def f(a, b, c):\n    return [a[1:], b['k'], c is None]", [[1, 2], {"k": "x y"}, None], [[2], "x y", True]),
    "a method of Solution": (
        "from typing import List\nclass Solution:\n    def f(self, a: List[int]) -> int:\n        return max(a)", [[1, 5, 2]], 5,
    ),
    "Solution wins over a helper of the same name": (
        "def f(x): return 0\nclass Solution:\n    def f(self, x): return x + 1", [1], 2,
    ),
    "a function beside a Solution without it": ("class Solution: pass\ndef f(x): return x", [1], 1),
    "a lambda": ("f = lambda *a: len(a)", [1, 2, 3], 3),
    "no argument": ("def f(): return 'a'", [], "a"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)", [20000], 20000,
    ),
    "tuples are lists": ("def f(x): return (x, (x, [(x,)]))", [1], [1, [1, [[1]]]]),
    "floats": ("def f(x): return x / 3", [1], 1 / 3),
    "a whole float is the integer": ("def f(x): return x / 2", [4], 2),
    "an integer is the whole float": ("def f(x): return x", [2], 2.0),
    "None": ("def f(x): pass", [1], None),
    "text with line ends and accents": ("def f(x): return x + '\\n'", ["é\n\u2028\ud800"], "é\n\u2028\ud800\n"),
    "large integers": ("def f(x): return x * 10", [10**4000], 10**4001),
    "dictionaries in another order": ("def f(x): return {'b': 1, 'a': 2}", [0], {"a": 2, "b": 1}),
    "what it prints does not count": ("print('top')\ndef f(x):\n    print('inside', flush=True)\n    return x", [1], 1),
    "its own main block reads the input": ("def f(x): return x\nif __name__ == '__main__':\n    print(f(input()))", [1], 1),
    "it hides built-in names": (
        "import sys\ninput = sys.stdin.readline\nlist = dict = int = str = float = open = print = isinstance = Any = 0\n"
        "def f(x): return x", [[1.0]], [1],
    ),
    "its own Any stays": ("class Any: value = 3\ndef f(x): return Any.value", [1], 3),
    "it ends in a comment or a backslash": ("def f(x): return x  # \\", [1], 1),
    "a future import": ("from __future__ import annotations\ndef f(x: Missing): return x", [1], 1),
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("name", PASSING)
def test_functions_that_are_right(bench, name):
    code, arguments, value = PASSING[name]
    result = judge_call(bench, code, arguments, value)
    assert result.passing == [True], result.feedback


FAILING = {
    "a wrong value": ("def f(x): return 2", VerdictKind.WRONG_ANSWER, "Program's Output:\n2\nExpected Output:\n1"),
    "a printed value": ("def f(x): print(x)", VerdictKind.WRONG_ANSWER, "Program's Output:\nnull"),
    "a number as text": ("def f(x): return '1'", VerdictKind.WRONG_ANSWER, 'Program\'s Output:\n"1"'),
    "the truth for a number": ("def f(x): return True", VerdictKind.WRONG_ANSWER, "true"),
    "no such function": (
        "def g(x): return x",
        VerdictKind.RUNTIME_ERROR,
        "neither a function 'f' nor a class Solution",
    ),
    "another number of arguments": ("def f(): return 1", VerdictKind.RUNTIME_ERROR, "takes 0 positional arguments"),
    "a set": ("def f(x): return {x}", VerdictKind.RUNTIME_ERROR, "the value that f returned cannot be compared"),
    "it exits": ("import sys\ndef f(x): sys.exit(3)", VerdictKind.RUNTIME_ERROR, "exit status 3"),
    "it never ends": ("def f(x):\n    while True: pass", VerdictKind.TIME_LIMIT, "CPU time"),
    "a decorator at the end": ("def f(x): return x\n@f", VerdictKind.COMPILE_ERROR, "SyntaxError"),
    "an open bracket": ("def f(x):\n    return (x", VerdictKind.COMPILE_ERROR, "'(' was never closed"),
}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", FAILING)
def test_functions_that_are_wrong(bench, name):
    code, kind, feedback = FAILING[name]
    result = judge_call(bench, code, [1], 1, cpu_seconds=1.0)
    assert result.verdicts[0].kind is kind
    assert feedback in result.feedback[0]


@pytest.mark.sandbox
def test_a_traceback_shows_the_programs_own_lines_and_nothing_of_the_judge(bench):
    result = judge_call(bench, "def g(x):\n    return x / 0\ndef f(x):\n    return g(x)", [1], 1)
    text = result.feedback[0]
    assert 'File "main.py", line 4, in f' in text
    assert 'File "main.py", line 2, in g' in text
    assert "_judge" not in text
    assert "<module>" not in text


def judge_call(bench, code, arguments, value, **settings):
    suite = TestSuite((call_input(arguments),), (canonical_json(value),), "f")
    judge = bench.judges.get(wanted := JudgeSettings(**({"concurrency": 1} | settings)))
    if judge is None:
        judge = bench.judges[wanted] = LocalJudge(wanted)
        bench.runner.run(judge.__aenter__())
    return bench.runner.run(judge.judge(code, suite))
