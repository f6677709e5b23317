"""`RememberingJudge`, wrapped around a judge that counts its calls."""

import asyncio

import pytest

from cobalt.judge import ExecResult, RememberingJudge
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError

SUITE = TestSuite(("1",), ("1",))
OTHER = TestSuite(("1",), ("2",))


class Counting:
    """Fails a given number of times, then fails every test; it counts its calls."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[tuple[str, TestSuite, bool]] = []
        self._failures = failures

    async def judge(self, code, suite, *, stop_at_first_failure=False):
        self.asked.append((code, suite, stop_at_first_failure))
        await asyncio.sleep(0)
        if len(self.asked) <= self._failures:
            raise InfrastructureError("down")
        return ExecResult.no_code(len(suite))

    async def describe(self):
        return {"comparison": "strip"}


async def test_each_program_is_judged_once_on_a_suite_even_by_concurrent_callers():
    counting = Counting()
    judge = RememberingJudge(counting)
    results = await asyncio.gather(*(judge.judge("a", TestSuite(("1",), ("1",))) for _ in range(5)))
    await judge.judge("a", OTHER)
    await judge.judge("b", SUITE)
    await judge.judge("a", SUITE, stop_at_first_failure=True)
    await judge.judge("a", SUITE)
    assert counting.asked == [("a", SUITE, False), ("a", OTHER, False), ("b", SUITE, False), ("a", SUITE, True)]
    assert all(result is results[0] for result in results)
    assert await judge.describe() == {"comparison": "strip"}


async def test_a_failure_of_the_judge_reaches_all_callers_and_is_not_remembered():
    counting = Counting(failures=1)
    judge = RememberingJudge(counting)
    outcomes = await asyncio.gather(*(judge.judge("a", SUITE) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InfrastructureError] * 3
    assert await judge.judge("a", SUITE) == ExecResult.no_code(1)
    assert len(counting.asked) == 2


async def test_a_cancelled_caller_does_not_take_the_result_from_the_others():
    counting = Counting()
    judge = RememberingJudge(counting)
    first, second = (asyncio.create_task(judge.judge("a", SUITE)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ExecResult.no_code(1)
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(counting.asked) == 1


async def test_the_least_recently_used_program_is_forgotten_first():
    counting = Counting()
    judge = RememberingJudge(counting, capacity=2)
    for code in ("a", "b", "a", "c", "a", "b"):
        await judge.judge(code, SUITE)
    assert [code for code, _, _ in counting.asked] == ["a", "b", "c", "b"]
