"""Which reading of a data set's tests its recorded solutions pass, by a judge that may fail and is asked again."""

from collections.abc import Sequence

import tenacity

from cobalt.judge import ExecResult, Judge
from cobalt.problem import TestSuite
from cobalt.retrying import retrying

_ATTEMPTS = 3


def judging() -> tenacity.AsyncRetrying:
    """Calls a judge again, a few times, when the judge itself fails."""
    return retrying(_ATTEMPTS, first_pause=0.2, longest_pause=10.0)


async def passed_reading(judge: Judge, programs: Sequence[str], readings: Sequence[TestSuite]) -> TestSuite | None:
    """The first of some readings of the tests that one of the programs passes; None if no program passes any.

    Raises:
        InfrastructureError: the judge failed at every attempt; nothing is known of the readings then.
    """
    attempts = judging()
    for program in programs:
        for suite in readings:
            result: ExecResult = await attempts(judge.judge, program, suite, stop_at_first_failure=True)
            if result.all_passed:
                return suite
    return None
