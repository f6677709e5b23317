"""Assertion tests: the calls run in the program, the assertion without it, and values keep their types."""

# Whole programs stand on one line each.
# ruff: noqa: E501

import json
import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_calling import assert_no_frame_of_the_driver
from test_judge_programs import bench as bench

from cobalt.judge import VerdictKind
from cobalt.judge.asserting import check_suite, returned_values, shown_values
from cobalt.judge.inside.checker import CheckError, decode
from cobalt.judge.inside.script_driver import _judge_typed
from cobalt.judge.wire import JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError

PASSED, WRONG, CRASHED = VerdictKind.PASSED, VerdictKind.WRONG_ANSWER, VerdictKind.RUNTIME_ERROR
NOT_RUN = VerdictKind.NOT_RUN

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.fractions() | st.tuples(st.integers())
VALUES = st.recursive(
    KEYS | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
    ),
    max_leaves=12,
)


def written(*values):
    """The text that the driver leaves for these values."""
    return json.dumps([_judge_typed(value) for value in values])


@given(VALUES)
def test_values_keep_their_types(value):
    [read] = decode(json.loads(written(value)))
    assert read == value
    assert type(read) is type(value)
    assert decode(json.loads(written(bytearray(b"a")))) == [b"a"]


@given(VALUES)
def test_shown_values_are_those_that_python_shows(value):
    shown = shown_values(written(value))
    if not any(name in shown for name in ("Fraction", "Decimal", "complex", "bytes")):  # these are shown by their parts
        assert eval(shown, {"inf": math.inf}) == value


ITERATORS = [iter([0, 1]), (n for n in (0, 1)), map(int, "01")]
COLLECTIONS = [range(2), {0: 1, 1: 2}.keys(), deque([0, 1])]


@pytest.mark.parametrize("value", ITERATORS + COLLECTIONS)
def test_of_other_iterables_the_items_are_kept_and_they_equal_nothing(value):
    [read] = decode(json.loads(written(value)))
    assert [0, 1] != read != (0, 1)
    kept = value in COLLECTIONS  # an iterator gives its items once
    assert (tuple(read), tuple(read)) == ((0, 1), (0, 1) if kept else ())
    assert (hasattr(type(read), "__len__"), hasattr(type(read), "__next__")) == (kept, not kept)


@pytest.mark.parametrize(
    "text",
    ['{"object": []}', '{"set": [[1]]}', '{"tuple": 3}', '{"bytes": 99999999999}', '{"bytes": [300]}', '{"dict": [1]}',
     '{"Decimal": "x"}', '{"Fraction": [1, 0]}', '{"Fraction": ["1e999999999"]}', '{"complex": ["a"]}', '{"a": 1, "b": 2}',
     "{}"],
)  # fmt: skip
def test_forged_values_are_refused(text):
    with pytest.raises((CheckError, TypeError, ValueError, ArithmeticError)):
        decode(json.loads(text))
    assert isinstance(shown_values(f"[{text}]"), str)


@pytest.mark.parametrize("byte", [b"\xff", b"\0", b'"', b"\\", b"\n", b"\xc3\xa9"])
def test_what_a_program_writes_as_values_does_not_grow_on_its_way_to_the_check(byte):
    def size(values):
        return len(check_suite(ONE, {0: returned_values(values)}).inputs[0].encode())

    assert size(byte * 1000) <= size(b"") + len(byte * 1000)


ONE = TestSuite(("f(1)",), ("assert f(1) == 1",), "f", True)


@pytest.mark.parametrize("suite", [ONE, TestSuite(("1",), ("2",), "f"), TestSuite(("1",), ("2",))])
def test_a_suite_says_what_its_tests_are_and_survives_its_forms(suite):
    assert list(suite.to_record())[2:] == ["fn_name"] * bool(suite.fn_name) + ["asserts"] * suite.asserts
    assert TestSuite.parse(suite.to_json()) == suite
    assert JudgeRequest.parse(JudgeRequest("x", suite).to_payload()).suite == suite
    assert suite.select([0]) == suite
    assert suite.positions_of(suite) == [0]
    with pytest.raises(UserError):
        suite.positions_of(TestSuite(suite.inputs, suite.outputs, "g"))


@pytest.mark.parametrize(
    "fields",
    [{"asserts": True}, {"asserts": 1, "fn_name": "f"}, {"asserts": "yes", "fn_name": "f"},
     {"fn_name": 3}, {"fn_name": "f(); evil"}, {"fn_name": ""}],
)  # fmt: skip
def test_a_bad_suite_is_refused_by_its_field(fields):
    with pytest.raises(UserError, match=next(iter(fields))):
        TestSuite.parse({"inputs": [], "outputs": []} | fields)


def judge(bench, code, *tests, stop=False, **settings):
    """The kinds of the verdicts on tests, each a script and a check."""
    suite = TestSuite(tuple(script for script, _ in tests), tuple(check for _, check in tests), "f", True)
    found = bench.judge(code, suite, stop=stop, **settings)
    return [verdict.kind for verdict in found.verdicts], found.feedback


TEST = ("f(3)", "assert f(3) == (3, 4)")

PROGRAMS = {
    "a right value": ("def f(x): return x, x + 1", PASSED),
    "a class that extends the type": ("class A(tuple): pass\ndef f(x): return A((x, x + 1))", PASSED),
    "prints": ("print('top')\ndef f(x):\n    print('inside', flush=True)\n    return x, x + 1", PASSED),
    "its own main block ends the program": ("def f(x): return x, x + 1\nif __name__ == '__main__':\n    raise SystemExit", PASSED),
    "hides built-in names": ("list = dict = int = str = isinstance = compile = eval = exec = 0\ndef f(x): return x, x + 1", PASSED),
    "a method of Solution that calls a function of its name": ("def f(x): return x, x + 1\nclass Solution:\n    def f(self, x): return f(x)", PASSED),
    "a low limit on recursion": ("import sys\ndef f(x):\n    sys.setrecursionlimit(30)\n    return x, x + 1", PASSED),
    "a generator for a tuple": ("def f(x): yield from (x, x + 1)", WRONG),
    "a list for a tuple": ("def f(x): return [x, x + 1]", WRONG),
    "another value": ("def f(x): return x, x", WRONG),
    "nothing": ("def f(x): pass", WRONG),
    "its own AssertionError": ("def f(x): assert False", CRASHED),
    "another exception": ("def f(x): return x / 0", CRASHED),
    "a value without a text": ("def f(x): return object()", CRASHED),
    "no such function": ("def g(x): return x", CRASHED),
    "not a program": ("def f(x: return", VerdictKind.COMPILE_ERROR),
    "a decorator at the end": ("def f(x): return x\n@f", VerdictKind.COMPILE_ERROR),
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_outcome_has_its_kind(bench, name):
    code, kind = PROGRAMS[name]
    kinds, feedback = judge(bench, code, TEST, cpu_seconds=1.0)
    assert kinds == [kind], feedback


@pytest.mark.sandbox
def test_a_script_may_set_up_what_it_needs_with_the_programs_own_names(bench):
    code = "class Node:\n    def __init__(self, value): self.value, self.left = value, None\ndef f(node): return node.left.value"
    script = "import math\nroot = Node(1)\nroot.left = Node(math.floor(2.5))\nf(root)"
    assert judge(bench, code, (script, "assert f(...) == 2"), (script, "assert f(...) == 1"))[0] == [PASSED, WRONG]


@pytest.mark.sandbox
def test_several_calls_share_a_process_and_their_order_and_their_values_are_taken_when_they_return(bench):
    code = "seen = []\ndef f(x):\n    seen.append(x)\n    return seen"
    check = "for n in (1, 2):\n    assert f(n) == list(range(1, n + 1))"
    assert judge(bench, code, ("f(1)\nf(2)", check), ("f(2)\nf(1)", check))[0] == [PASSED, WRONG]
    # What is no literal may be called with anything.
    script, check = "f([1].pop())\nf(float('nan'))\nf(2)", "assert f(...) == [1] and f(float('nan'))[0] == 1 and f(2)"
    assert judge(bench, code, (script, check))[0] == [PASSED]


CHECKS = {
    "an assertion with a message": ("assert f(3) == (3, 4), 'no'", PASSED),
    "the items of an iterable": ("assert list(f(3)) == [3, 4]", PASSED),
    "a tolerance": ("import math\nassert math.isclose(f(3)[1], 4.0000000001)", PASSED),
    "a function of its own": ("def check(candidate):\n    assert candidate(3)[0] == 3\ncheck(f)", PASSED),
    "something printed": ("print('accepted')\nassert f(3) == 1", WRONG),
    "an end with success": ("import os\nos._exit(0)", WRONG),
    "another exception": ("assert f(3) > 'a'", WRONG),
    "another call": ("assert f(4) == (3, 4)", WRONG),
    "another call, which it hides": ("try: f(4)\nexcept Exception: pass", WRONG),
    "one call more": ("assert f(3) == (3, 4)\nf(3)", WRONG),
    "a loop without end": ("f(3)\nwhile True: pass", WRONG),
    "no Python": ("assert f(3) ==", WRONG),
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("name", CHECKS)
def test_a_check_accepts_only_by_ending_without_an_exception(bench, name):
    check, kind = CHECKS[name]
    kinds, feedback = judge(bench, "def f(x): return x, x + 1", ("f(3)", check), cpu_seconds=1.0)
    assert kinds == [kind], feedback


@pytest.mark.sandbox
def test_tests_after_the_first_failing_one_are_not_run_if_asked(bench):
    code = "def f(x): return 1 / x"
    tests = [("f(1)", "assert f(1) == 1"), ("f(2)", "assert f(2) == 1"), ("f(0)", "assert f(0) == 1")]
    assert judge(bench, code, *tests)[0] == [PASSED, WRONG, CRASHED]
    assert judge(bench, code, *tests, stop=True)[0] == [PASSED, WRONG, NOT_RUN]
    assert judge(bench, code, tests[0], tests[2], tests[1], stop=True)[0] == [PASSED, CRASHED, NOT_RUN]


@pytest.mark.sandbox
def test_values_beyond_the_room_of_a_suite_exceed_the_limit_on_output(bench):
    code = "def f(x): return 'x' * (12 << 20)"
    kinds, _ = judge(bench, code, *[("f(1)", "assert len(f(1)) == 12 << 20")] * 3)
    assert kinds == [PASSED, PASSED, VerdictKind.OUTPUT_LIMIT]


@pytest.mark.sandbox
def test_feedback_shows_the_call_the_value_and_the_assertion(bench):
    _, [text] = judge(bench, "def f(x): return {x: [None, (1,)]}", TEST)
    assert all(part in text for part in ("f(3)", "{3: [None, (1,)]}", TEST[1]))


@pytest.mark.sandbox
@pytest.mark.parametrize("body", ["return x / 0", "return object()", "return f(x)", "raise SystemExit(3)"])
def test_feedback_has_the_programs_frames_alone(bench, body):
    code = f"def f(x):\n    {body}"
    kinds, [text] = judge(bench, code, TEST)
    assert kinds == [CRASHED]
    assert_no_frame_of_the_driver(text.partition("Stderr:")[2], code)
    assert "<test>" not in text


@pytest.mark.sandbox
def test_the_papers_guard_leaves_assertions_as_they_are(bench):
    assert judge(bench, "def f(x): return x, x + 1", TEST, paper_guard=True)[0] == [PASSED]
    assert judge(bench, "def f(x): return x", TEST, paper_guard=True)[0] == [WRONG]
