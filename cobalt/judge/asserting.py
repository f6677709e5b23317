"""Assertion tests: the judge runs the calls of an assertion in the program, and the assertion without the program.

Each test has a script, which calls the program's function, and a check, which calls it and raises where the value is
wrong. The script runs in the program (`inside.script_driver`), and its values are written down as data. Then, in a test
of its own, `inside.checker` executes the check with a stand-in that returns these values. So a program never shares a
process with an assertion, and none of its methods decides whether two values are equal.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cobalt.judge.calling import VALUE_MARK
from cobalt.judge.feedback import EARLIER_TEST_FAILED, failure_text, not_run_text
from cobalt.judge.inside import checker
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import TestSuite

# Longer texts are shown as they are in feedback, because values take many times the memory of their text.
_LONGEST_SHOWN = 1 << 16


CHECKER = inspect.getsource(checker)
"""The source of the program that runs checks."""


def check_suite(suite: TestSuite, values: Mapping[int, str]) -> TestSuite:
    """The suite of the program that runs checks.

    `values` has the text that the driver left, by index, for each test whose script has run to its end.
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

    A test whose check raises or exceeds a limit is a wrong answer. The costs are those of the program alone.

    Args:
        suite: The suite.
        ran: The program's result, in which a test passes if its script has run to its end.
        values: The text that the driver left for each of these tests, by its index.
        checked: The result of `check_suite`.
        stop_at_first_failure: Whether the tests after the first failing one are `not_run`.
    """
    verdicts, feedback = [*ran.verdicts], [*ran.feedback]
    for (index, text), verdict, said in zip(values.items(), checked.verdicts, checked.feedback, strict=True):
        if verdict.kind is VerdictKind.NOT_RUN:
            verdicts[index], feedback[index] = verdict, said
        elif verdict.kind is not VerdictKind.PASSED:
            script, check = suite.inputs[index], suite.outputs[index]
            verdicts[index] = wrong = replace(verdicts[index], kind=VerdictKind.WRONG_ANSWER)
            feedback[index] = failure_text(wrong.kind, script, shown_values(text), check, "", "")
    passing = [verdict.kind is VerdictKind.PASSED for verdict in verdicts]
    if stop_at_first_failure and False in passing:
        end = passing.index(False) + 1
        left = len(passing) - end
        passing[end:], verdicts[end:] = [False] * left, [Verdict(VerdictKind.NOT_RUN)] * left
        feedback[end:] = [not_run_text(EARLIER_TEST_FAILED)] * left
    seconds = {name: getattr(ran, name) + getattr(checked, name) for name in ("queue_seconds", "run_seconds")}
    return replace(ran, passing=passing, feedback=feedback, verdicts=verdicts, **seconds)


def returned_values(stdout: bytes) -> str:
    """The text that the driver left on standard output, which is ASCII; other bytes are not the driver's."""
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
    """A value that the driver wrote, as Python writes it. No value is made: of a forged text it could be a huge one."""
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
