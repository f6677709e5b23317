"""Function problems: typed arguments in, canonical JSON out, the program's own names and prints left alone."""

# Whole programs stand on one line each.
# ruff: noqa: E501

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_judge_programs import bench as bench

from cobalt.judge import VerdictKind, feedback
from cobalt.judge.calling import call_input, canonical_json
from cobalt.problems.problem import TestSuite

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
    [((1, (2.5, "a"), None, True), '[1, [2.5, "a"], null, true]'), (3.0, "3"), (-0.0, "0"),
     ({"b": 1, "a": 2, 3: (4,)}, '{"3": [4], "a": 2, "b": 1}')],
)  # fmt: skip
def test_canonical_json_of_values_that_are_no_json(value, text):
    assert canonical_json(value) == text
    with pytest.raises(TypeError):
        canonical_json([value, {1}])


PASSING = {
    "typed arguments": ("def f(a, b, c):\n    return [a[1:], b['k'], c is None]", [[1, 2], {"k": "x y"}, None], [[2], "x y", True]),
    "a method of Solution": (
        "from typing import List\nclass Solution:\n    def f(self, a: List[int]) -> int:\n        return max(a)", [[1, 5, 2]], 5,
    ),
    "Solution wins over a helper of the same name": (
        "def f(x): return 0\nclass Solution:\n    def f(self, x): return x + 1", [1], 2,
    ),
    "a function beside a Solution without it": ("class Solution: pass\ndef f(x): return x", [1], 1),
    "no argument": ("def f(): return 'a'", [], "a"),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)", [20000], 20000,
    ),
    "tuples are lists": ("def f(x): return (x, (x, [(x,)]))", [1], [1, [1, [[1]]]]),
    "a whole float is the integer": ("def f(x): return x / 2", [4], 2),
    "an integer is the whole float": ("def f(x): return x", [2], 2.0),
    "None": ("def f(x): pass", [1], None),
    "text with line ends and accents": ("def f(x): return x + '\\n'", ["é\n\u2028\ud800"], "é\n\u2028\ud800\n"),
    "large integers": ("def f(x): return x * 10", [10**4000], 10**4001),
    "dictionaries in another order": ("def f(x): return {'b': 1, 'a': 2}", [0], {"a": 2, "b": 1}),
    "what it prints does not count": ("print('top')\ndef f(x):\n    print('inside', flush=True)\n    return x", [1], 1),
    "it reads the input": ("text = input()\ndef f(x): return x", [1], 1),
    "its own main block is for another input and ends the program": (
        "import sys\ndef f(x): return x\nif __name__ == '__main__':\n    print(f(int(input().split()[3])))\n    sys.exit()", ["a"], "a",
    ),
    "it finds its module by name": (
        "from __future__ import annotations\nimport dataclasses, pickle\n@dataclasses.dataclass\nclass A:\n    x: int\n"
        "def f(x): return pickle.loads(pickle.dumps(A(x))).x", [1], 1,
    ),
    "it hides built-in names": (
        "import sys\ninput = sys.stdin.readline\nlist = dict = int = str = float = open = print = isinstance = Any = 0\n"
        "def f(x): return x", [[1.0]], [1],
    ),
    "its own Any stays": ("class Any: value = 3\ndef f(x): return Any.value", [1], 3),
    "it ends in a comment or a backslash": ("def f(x): return x  # \\", [1], 1),
}  # fmt: skip
# Each returns its argument, and does something else that must not become part of the answer.
NOISY = {
    "prints before the answer": "print('top', flush=True)\ndef f(x):\n    print('inside', flush=True)\n    print('waiting')\n    return x",
    "a thread that never stops printing": """
import threading, time
def late():
    while True: print('late', flush=True)
def f(x):
    for _ in range(3): threading.Thread(target=late, daemon=True).start()
    time.sleep(0.02)
    return x""",
    "a thread that never stops writing to a descriptor of its own": """
import os, threading, time
def late(number):
    while True: os.write(number, b'late')
def f(x):
    threading.Thread(target=late, args=(os.dup(1),), daemon=True).start()
    time.sleep(0.02)
    return x""",
    "an exit handler": "import atexit\natexit.register(print, 'late', flush=True)\ndef f(x): return x",
    "an exit handler that fails": "import atexit, os\natexit.register(os._exit, 3)\ndef f(x): return x",
    "another standard output by its path": "import sys\nsys.stdout = open('/dev/stdout', 'w')\ndef f(x):\n    print('late')\n    return x",
    "a standard output without methods": "import sys\nprint('late')\nsys.stdout = sys.__stdout__ = sys.stderr = None\ndef f(x): return x",
    "no descriptor left": """
import os
held = []
def f(x):
    try:
        while True: held.append(os.open('/dev/null', os.O_RDONLY))
    except OSError as error:
        if error.errno != 24: raise
    if len(held) < 100: raise ValueError(held)
    return x""",
    "a child that outlives the answer": """
import os, time
def f(x):
    if os.fork() == 0:
        time.sleep(0.05)
        print('late', flush=True)
        os._exit(0)
    return x""",
    "a low limit on recursion": "import sys\ndef f(x):\n    sys.setrecursionlimit(30)\n    return x",
    "a frozen clock of signals": "import signal\ndef f(x):\n    signal.signal(signal.SIGALRM, lambda *_: print('late'))\n    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n    return x",
}  # fmt: skip
ANYTHING = [1, "a", [None, 0.5]]
PASSING |= {name: (code, [ANYTHING], ANYTHING) for name, code in NOISY.items()}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", PASSING)
def test_functions_that_are_right(bench, name):
    code, arguments, value = PASSING[name]
    result = judge_call(bench, code, arguments, value, repetitions=5 if name in NOISY else 1)
    assert all(result.passing), result.feedback


WRONG, CRASHED = VerdictKind.WRONG_ANSWER, VerdictKind.RUNTIME_ERROR
NOT_RETURNED = "The program ended before f returned a value."
FAILING = {
    "a wrong value": ("def f(x): return 2", WRONG, "Program's Output:\n2\nExpected Output:\n1"),
    "a printed value": ("def f(x): print(x)", WRONG, "Program's Output:\nnull"),
    "a number as text": ("def f(x): return '1'", WRONG, 'Program\'s Output:\n"1"'),
    "a value that is no JSON": ("import os\ndef f(x):\n    os.write(1, b'\\x1e\\xff')\n    os._exit(0)", WRONG, "Program's Output:\n"),
    "no such function": ("def g(x): return x", CRASHED, "neither a function 'f' nor a class Solution"),
    "another number of arguments": ("def f(): return 1", CRASHED, "takes 0 positional arguments"),
    "a set": ("def f(x): return {x}", CRASHED, "the value that f returned cannot be compared"),
    "it exits": ("import sys\ndef f(x): sys.exit(3)", CRASHED, "exit status 3"),
    "it never ends": ("def f(x):\n    while True: pass", VerdictKind.TIME_LIMIT, "CPU time"),
    "a decorator at the end": ("def f(x): return x\n@f", VerdictKind.COMPILE_ERROR, "SyntaxError"),
    "an open bracket": ("def f(x):\n    return (x", VerdictKind.COMPILE_ERROR, "'(' was never closed"),
    "no standard output": ("import os\ndef f(x):\n    os.close(1)\n    return x", CRASHED, ""),
    "no standard input": ("import os\nos.close(0)\ndef f(x): return x", CRASHED, ""),
    "no standard stream": ("import os\nfor n in range(3): os.close(n)\ndef f(x): return x", CRASHED, ""),
    "a pipe for standard output": ("import os\ndef f(x):\n    os.dup2(os.pipe()[1], 1)\n    return x", CRASHED, ""),
    "it prints the value and exits": ("def f(x):\n    print(x)\n    raise SystemExit", CRASHED, NOT_RETURNED),
    "it writes the value and exits": ("import os\ndef f(x):\n    os.write(1, b'1')\n    os._exit(0)", CRASHED, NOT_RETURNED),
    "its program prints the value and exits": ("def f(x): return x\nprint(1)\nexit()", CRASHED, NOT_RETURNED),
    "an exit handler prints the value": ("import atexit\natexit.register(print, 1)\ndef f(x): raise SystemExit", CRASHED, NOT_RETURNED),
    "a hook prints the value and exits": ("import os, sys\ndef hook(*error):\n    print(1)\n    raise SystemExit\nsys.excepthook = hook\ndef f(x): 1 / 0", CRASHED, NOT_RETURNED),
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("name", FAILING)
def test_functions_that_are_wrong(bench, name):
    code, kind, feedback = FAILING[name]
    result = judge_call(bench, code, [1], 1, cpu_seconds=1.0)
    assert result.verdicts[0].kind is kind
    assert feedback in result.feedback[0]
    assert_no_frame_of_the_driver(result.feedback[0], code)


@pytest.mark.sandbox
def test_rules_reach_numbers_within_values_and_blanks_within_texts_count(bench):
    code = "def f(x): return [x / 3, {'a': (x / 7,)}, 'a b', True, float('nan')]"
    rounded = [0.3333333333, {"a": [0.142857143]}, "a b", 1, float("nan")]
    assert judge_call(bench, code, [1], rounded, comparison="float").passing == [True]
    assert judge_call(bench, code, [1], rounded, comparison="lines").passing == [False]
    rounded[2] = "a  b"
    assert judge_call(bench, code, [1], rounded, comparison="float").passing == [False]
    for mode in ("strip", "lines"):
        assert judge_call(bench, "def f(): return [True, 0]", [], [1, False], comparison=mode).passing == [True]


# Programs that fail, each with the lines of its own that the feedback names, outermost first.
FRAMES = {
    "an error in a function": ("def g(x):\n    return x / 0\ndef f(x):\n    return g(x)", [4, 2]),
    "an error in a method": ("class Solution:\n    def f(self, x):\n        return self.g(x)\n    def g(self, x): return x.y", [3, 4]),
    "an error while the class is made": ("class Solution:\n    def __init__(self):\n        raise KeyError(1)\n    def f(self, x): return x", [3]),
    "a cause": ("def f(x):\n    try:\n        g()\n    except KeyError as e:\n        raise ValueError(2) from e\ndef g(): raise KeyError(1)", [3, 6, 5]),
    "a context": ("def f(x):\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        {}[1]", [3, 5]),
    "a group": ("def f(x):\n    errors = []\n    try:\n        g()\n    except KeyError as e:\n        errors.append(e)\n    raise ExceptionGroup('several', errors)\ndef g(): raise KeyError(1)", [7, 4, 8]),
    "a frozen data class": ("from dataclasses import dataclass\n@dataclass(frozen=True)\nclass E(Exception):\n    a: int\ndef f(x):\n    raise E(1)", [6]),
    "endless recursion": ("def f(x):\n    return f(x)", [2, 2]),
    "an error beyond a low limit on recursion": ("import sys\ndef f(x):\n    sys.setrecursionlimit(30)\n    return f(x)", [4]),
    "a coroutine": ("async def f(x): return x", []),
    "a value in itself": ("def f(x):\n    a = []\n    a.append(a)\n    return a", []),
    "a value nested too deeply": ("def f(x):\n    for _ in range(60000): x = [x]\n    return x", []),
    "a list that cannot be read": ("class A(list):\n    def __iter__(self): raise ValueError(3)\ndef f(x): return A()", []),
    "a hook of its own": ("import sys, traceback\nsys.excepthook = lambda *e: traceback.print_exception(*e)\ndef f(x): return x.y", [3]),
    "a hook for an error of the driver": ("import sys, traceback\nsys.excepthook = lambda *e: traceback.print_exception(*e)\ndef f(x): return {x}", []),
    "a hook that fails": ("import sys\nsys.excepthook = lambda *e: 1 / 0\ndef f(x): return x.y", [3]),
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("name", FRAMES)
def test_feedback_has_the_programs_frames_alone(bench, name, monkeypatch):
    monkeypatch.setattr(feedback, "FIELD_CHARACTERS", 1 << 20)  # the middle of a long traceback, too
    code, lines = FRAMES[name]
    code = f"print('seen')\n{code}"
    result = judge_call(bench, code, [1], 1)
    assert result.verdicts[0].exit_status == 1
    output, _, errors = result.feedback[0].partition("\nStderr:\n")
    assert output.endswith("Program's Output:\nseen")
    assert_no_frame_of_the_driver(errors, code)
    named = [int(number) - 1 for number in re.findall(r'File "main.py", line (\d+)', errors)]
    assert named[: len(lines)] == lines
    assert bool(named) is bool(lines)


def assert_no_frame_of_the_driver(text, code):
    for word in ("_judge", "<module>", "json/", "start.py", "inside/"):
        assert word not in text
    assert all(int(number) <= code.count("\n") + 1 for number in re.findall(r"line (\d+), in", text))


def judge_call(bench, code, arguments, value, repetitions=1, **settings):
    suite = TestSuite((call_input(arguments),) * repetitions, (canonical_json(value),) * repetitions, "f")
    return bench.judge(code, suite, **settings)
