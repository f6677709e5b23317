"""Recorded solutions of a data set against readings of its tests; a judge that fails itself is asked again."""

from collections.abc import Sequence

from cobalt.judge import ExecResult, Judge
from cobalt.problems.problem import TestSuite
from cobalt.stage.retrying import retrying

_ATTEMPTS = 3


async def judge_recorded(
    judge: Judge, program: str, suite: TestSuite, *, stop_at_first_failure: bool = False
) -> ExecResult:
    """What `Judge.judge` returns; it is asked a few times where it fails itself.

    Raises:
        InfrastructureError: the judge failed at every attempt.
    """
    attempts = retrying(_ATTEMPTS, first_pause=0.2, longest_pause=10.0)
    result: ExecResult = await attempts(judge.judge, program, suite, stop_at_first_failure=stop_at_first_failure)
    return result


async def passed_reading(judge: Judge, programs: Sequence[str], readings: Sequence[TestSuite]) -> TestSuite | None:
    """The first of some readings of the tests that one of the programs passes; None if no program passes any.

    Raises:
        InfrastructureError: the judge failed at every attempt; nothing is known of the readings then.
    """
    for program in programs:
        for suite in readings:
            if (await judge_recorded(judge, program, suite, stop_at_first_failure=True)).all_passed:
                return suite
    return None
