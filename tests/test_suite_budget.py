"""The budgets of a whole suite: of CPU time, and of time that its programs spend waiting."""

import asyncio

import pytest

from cobalt.judge import ExecResult, LocalJudge, VerdictKind
from cobalt.judge.settings import JudgeSettings
from cobalt.problems.problem import TestSuite

pytestmark = pytest.mark.sandbox

WAIT = "import time\ntime.sleep(0.5)"
COMPUTE = "import time\nwhile time.process_time() < 0.3: pass"


def judged(code: str, tests: int = 12, **settings: object) -> ExecResult:
    async def result():
        async with LocalJudge(JudgeSettings(**settings)) as judge:
            return await judge.judge(code, TestSuite(tuple(str(n) for n in range(tests)), ("",) * tests))

    return asyncio.run(result())


def kinds(*arguments, **settings) -> list[VerdictKind]:
    return [verdict.kind for verdict in judged(*arguments, **settings).verdicts]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_tests_beyond_a_suites_budget_of_waiting_are_not_run(concurrency):
    found = kinds(WAIT, suite_wall_seconds=1.2, concurrency=concurrency)
    ran = found.count(VerdictKind.PASSED)
    assert ran in (3, 4)  # the third passes the budget; what a busy machine takes is not waited
    assert found == [VerdictKind.PASSED] * ran + [VerdictKind.NOT_RUN] * (12 - ran)


def test_cpu_time_does_not_count_as_waiting():
    assert set(kinds(COMPUTE, 5, suite_wall_seconds=0.5, concurrency=2)) == {VerdictKind.PASSED}


def test_there_is_a_budget_of_waiting_by_default_and_it_can_be_switched_off():
    assert JudgeSettings().suite_wall_seconds == 60
    assert [JudgeSettings(suite_seconds=limit).decisive()["suite_seconds"] for limit in (None, 27)] == [None, 27]
    assert set(kinds(WAIT, 4, suite_wall_seconds=None, concurrency=2)) == {VerdictKind.PASSED}


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize(("tests", "passes"), [(4, True), (12, False)])
def test_a_suite_that_takes_too_long_four_tests_at_a_time_passes_no_test(tests, passes, concurrency):
    # Tests of half a second: four take as long as one, twelve three times as long.
    result = judged(WAIT, tests, suite_seconds=0.75, concurrency=concurrency)
    assert len(result.passing) == tests
    assert result.pass_rate == (1.0 if passes else 0.0)
    assert {verdict.kind for verdict in result.verdicts} == {VerdictKind.PASSED if passes else VerdictKind.NOT_RUN}
    assert result.all_passed is passes
    assert (result.first_failure() is None) is passes


def test_cpu_time_counts_towards_the_time_of_a_suite():
    assert set(kinds(COMPUTE, suite_seconds=0.7, concurrency=2)) == {VerdictKind.NOT_RUN}  # three rounds of 0.3 s
