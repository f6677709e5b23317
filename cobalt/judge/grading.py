"""Grading: from the facts of an execution to its verdict and the text that a model is shown.

This is the only module in which expected outputs and a program's output meet.
"""

import dataclasses
import re

from cobalt.judge.calling import VALUE_MARK
from cobalt.judge.comparison import outputs_match, values_match
from cobalt.judge.feedback import failure_text
from cobalt.judge.sandbox.isolation import PYTHON_HOME
from cobalt.judge.sandbox.sandbox import Execution
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import Verdict, VerdictKind
from cobalt.problems.problem import TestSuite

# Feedback leaves out the folder of the standard library, which is a detail of the sandbox.
_LIBRARY_PATH = re.compile(rf'"(?:{PYTHON_HOME}|/usr)/lib/python3\.\d+/')


def grade(run: Execution, suite: TestSuite, index: int, settings: JudgeSettings) -> tuple[Verdict, str]:
    """The verdict of one execution on a suite's test, and its feedback text ("" if it passed).

    The values of an assertion test are not compared here: it passes if its script has run to its end.
    """
    fn_name, stdin, expected = suite.fn_name, suite.inputs[index], suite.outputs[index]
    errors = _LIBRARY_PATH.sub('"', run.stderr.decode("utf-8", "replace"))
    returned = run.stdout.startswith(VALUE_MARK)
    if fn_name is not None and returned:
        run = dataclasses.replace(run, stdout=run.stdout.removeprefix(VALUE_MARK))
    kind = _kind(run, errors, suite, expected, settings)
    if kind in (VerdictKind.PASSED, VerdictKind.WRONG_ANSWER) and fn_name is not None and not returned:
        kind, errors = VerdictKind.RUNTIME_ERROR, f"The program ended before {fn_name} returned a value."
    status = run.status if run.end == "exit" else None
    verdict = Verdict(kind, run.cpu_seconds, run.wall_seconds, status, run.peak_memory_bytes)
    if kind is VerdictKind.PASSED:
        return verdict, ""
    limits = {
        VerdictKind.TIME_LIMIT: f"{settings.cpu_seconds:g} s",
        VerdictKind.WALL_LIMIT: f"{settings.wall_limit:g} s",
        VerdictKind.MEMORY_LIMIT: f"{settings.memory_bytes >> 20} MiB",
        VerdictKind.OUTPUT_LIMIT: f"{settings.output_bytes} bytes",
    }
    if kind is VerdictKind.RUNTIME_ERROR and not errors.strip():
        errors = f"The program ended with exit status {run.status}."
        if run.status < 0:
            errors = f"The program was ended by signal {-run.status}."
    output = run.stdout.decode("utf-8", "surrogateescape")
    return verdict, failure_text(kind, stdin, output, expected, errors, limits.get(kind, ""))


def _kind(run: Execution, errors: str, suite: TestSuite, expected: str, settings: JudgeSettings) -> VerdictKind:
    # First, so that a program that ends by itself just above its limit gets the verdict of one that was stopped there.
    if run.end == "cpu" or run.cpu_seconds > settings.cpu_seconds:
        return VerdictKind.TIME_LIMIT
    if run.end == "wall":
        return VerdictKind.WALL_LIMIT
    if run.end == "memory":
        return VerdictKind.MEMORY_LIMIT
    if run.output_bytes > settings.output_bytes:
        return VerdictKind.OUTPUT_LIMIT
    if run.status != 0:
        out_of_memory = errors.strip().rpartition("\n")[2].startswith("MemoryError")
        return VerdictKind.MEMORY_LIMIT if out_of_memory else VerdictKind.RUNTIME_ERROR
    if suite.asserts:
        return VerdictKind.PASSED
    match = outputs_match if suite.fn_name is None else values_match
    return VerdictKind.PASSED if match(run.stdout, expected, settings) else VerdictKind.WRONG_ANSWER
