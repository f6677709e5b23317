"""Assertion tests: the judge runs the calls of an assertion in the program, and the assertion without the program.

A suite with `asserts` has for each test a script, which calls the program's function, and a check: Python code that
calls the same function and raises where what it returns is wrong, mostly one `assert` statement. The script runs in the
program (`inside.script_driver`), and the values that its calls return are written down as data. Then, in a test
of its own, `cobalt.judge.inside.checker` executes the check with a stand-in for the function that returns these values.

So a program never shares a process with an assertion: it cannot read the expected value, catch the error, replace
`AssertionError`, or end the process with success. Values have types of Python's own, and none of a program's methods
decides whether two are equal. This module runs nothing and knows no sandbox.
"""

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cobalt.judge.calling import VALUE_MARK
from cobalt.judge.feedback import EARLIER_TEST_FAILED, failure_text, not_run_text
from cobalt.judge.inside import checker
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import TestSuite

# Longer texts are shown as they are in feedback, because values take many times the memory of their text.
_LONGEST_SHOWN = 1 << 16


@functools.cache
def checker_program() -> str:
    """The source of the program that runs checks."""
    return inspect.getsource(checker)


def check_suite(suite: TestSuite, values: Mapping[int, str]) -> TestSuite:
    """The suite of the program that runs checks, for the tests of `suite` whose script has run to its end.

    Args:
        suite: A suite of assertion tests.
        values: For each of these tests, by its index, the text that the driver left.
    """
    inputs = []
    for index, text in values.items():
        test = {"fn_name": suite.fn_name, "script": suite.inputs[index], "check": suite.outputs[index]}
        inputs.append(f"{json.dumps(test)}\n{text}")
    return TestSuite(tuple(inputs), (checker.ACCEPTED,) * len(inputs), prelude="", comparison="strip")


def decided(
    suite: TestSuite, ran: ExecResult, values: Mapping[int, str], checked: ExecResult, *, stop_at_first_failure: bool
) -> ExecResult:
    """The result of a suite of assertion tests.

    A test passes if its check accepts the values. If the check raises, whatever it raises, or exceeds a limit, the test
    is a wrong answer. The costs in the verdicts are those of the program alone; the seconds of the result include the
    checks.

    Args:
        suite: The suite.
        ran: The program's result, in which a test passes if its script has run to its end.
        values: For each of these tests, by its index, the text that the driver left.
        checked: The result of `check_suite`.
        stop_at_first_failure: Whether the tests after the first failing one are `not_run`.
    """
    graded = list(zip(ran.verdicts, ran.feedback, strict=True))
    for place, (index, text) in enumerate(values.items()):
        if checked.verdicts[place].kind is VerdictKind.NOT_RUN:
            graded[index] = Verdict(VerdictKind.NOT_RUN), checked.feedback[place]
        elif not checked.passing[place]:
            script, check = suite.inputs[index], suite.outputs[index]
            feedback = failure_text(VerdictKind.WRONG_ANSWER, script, shown_values(text), check, "", "")
            graded[index] = replace(ran.verdicts[index], kind=VerdictKind.WRONG_ANSWER), feedback
    if stop_at_first_failure:
        graded = _stopped(graded)
    return replace(
        ran,
        passing=[verdict.kind is VerdictKind.PASSED for verdict, _ in graded],
        feedback=[text for _, text in graded],
        verdicts=[verdict for verdict, _ in graded],
        queue_seconds=ran.queue_seconds + checked.queue_seconds,
        run_seconds=ran.run_seconds + checked.run_seconds,
    )


def _stopped(graded: Sequence[tuple[Verdict, str]]) -> list[tuple[Verdict, str]]:
    passing = [verdict.kind is VerdictKind.PASSED for verdict, _ in graded]
    end = passing.index(False) + 1 if False in passing else len(passing)
    not_run = (Verdict(VerdictKind.NOT_RUN), not_run_text(EARLIER_TEST_FAILED))
    return [*graded[:end], *[not_run] * (len(graded) - end)]


def returned_values(stdout: bytes) -> str:
    """The text that the driver left on standard output, which is ASCII; other bytes are not the driver's, and ignored.

    So a text is never longer than what the program was allowed to write.
    """
    return stdout.removeprefix(VALUE_MARK).decode("ascii", "ignore")


def shown_values(text: str) -> str:
    """The values of a test for feedback: each on a line of its own, as Python writes it."""
    if len(text) > _LONGEST_SHOWN:
        return text
    try:
        values = json.loads(text)
        return "\n".join(map(_as_python, values)) if isinstance(values, list) else text
    except (ValueError, TypeError, RecursionError):
        return text  # a program that imitates the driver may have written it


def _as_python(value: Any) -> str:
    """A value that the driver wrote, as Python writes it. No value is made: of a forged text it could be a huge one.

    Raises:
        TypeError, ValueError: the driver writes no such value.
    """
    if isinstance(value, list):
        return f"[{', '.join(map(_as_python, value))}]"
    if not isinstance(value, dict):
        return repr(value)
    [(kind, content)] = value.items()
    if kind == "dict":
        return "{" + ", ".join(f"{_as_python(key)}: {_as_python(item)}" for key, item in content) + "}"
    if kind == "tuple":
        return f"({', '.join(map(_as_python, content))}{',' if len(content) == 1 else ''})"
    if kind == "set" and content:
        return "{" + ", ".join(map(_as_python, content)) + "}"
    return f"{kind}({_as_python(content)})" if content != [] else f"{kind}()"
