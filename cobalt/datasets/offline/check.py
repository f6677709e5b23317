"""Compare recorded statuses with this project's judge, on the samples of the statements.

Samples are few and easy: a program that was accepted elsewhere must pass them, and one with a compile error must not. A
program that failed elsewhere may pass them.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic.dataclasses import dataclass

from cobalt.datasets.offline.groups import OfflineResponse, Status, read_groups
from cobalt.datasets.readings import judge_recorded
from cobalt.judge import Judge, programs_at_a_time
from cobalt.judge.opening import using_judge
from cobalt.judge.verdict import ExecResult
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.run import READ, Input, Outcome, Output, check_ranges, made, stage, whole
from cobalt.stage.tally import Summary
from cobalt.stage.workers import work_on_all

PASSES = "passes every sample"
CONTRADICTS = "contradicts its status"


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """Judge programs of groups on the samples of their problems, and compare the verdicts with the recorded statuses.

    Judges in this process and needs no service.
    """

    input_file: Input
    """Groups (JSONL)."""
    problems_file: Annotated[Path, READ]
    """Their problems (JSONL), such as the problems.jsonl next to the groups; groups of others are passed over."""
    output_file: Output
    """The programs with their verdicts (JSONL)."""
    most: int = 200
    """Maximum number of programs of each status."""
    seed: int = 42
    """Seed of the choice of programs."""

    def __post_init__(self) -> None:
        check_ranges(self, ("most", self.most >= 1, "1 or more"))


@stage
async def check_groups(settings: CheckSettings, judge: Judge | None = None) -> Outcome:
    """Judge the programs, write them with their verdicts, and make a table of agreement by status.

    Raises:
        UserError: bad input, or a result that cannot be written or that other settings made.
        InfrastructureError: the judge failed; nothing is written.
    """
    suites = {str(problem.id): problem.tests for problem in load_problems(settings.problems_file)}
    chosen = choose_programs(settings, suites)
    if not chosen:
        raise UserError(f"{settings.problems_file} has none of the problems of {settings.input_file}")
    results: dict[int, ExecResult] = {}
    async with using_judge(judge) as local:

        async def work(index: int) -> None:
            problem, response = chosen[index]
            results[index] = await judge_recorded(local, response.program or "", suites[problem])

        arguments = {"stage": "check_groups", "most": settings.most, "seed": settings.seed}
        arguments["judge"] = dict(await local.describe())
        with whole(settings.output_file, arguments, [settings.input_file, settings.problems_file]) as result:
            await work_on_all(range(len(chosen)), work, programs_at_a_time())
            judged = [(*one, results[index]) for index, one in enumerate(chosen)]
            result.write(_record(problem, response, verdict, suites[problem]) for problem, response, verdict in judged)
            result.summary = _agreement([(response.status, verdict) for _, response, verdict in judged])
    return made(result.summary, "Agreement by status", settings.output_file)


def choose_programs(settings: CheckSettings, problems: Collection[str]) -> list[tuple[str, OfflineResponse]]:
    """Up to `settings.most` responses with a program of each status, with their problems' ids; drawn while reading."""
    rng = random.Random(settings.seed)
    chosen: defaultdict[Status, list[tuple[str, OfflineResponse]]] = defaultdict(list)
    seen: Counter[Status] = Counter()
    for group in read_groups(settings.input_file):
        for response in group.responses:
            if group.problem_id not in problems or response.program is None:
                continue
            seen[response.status] += 1
            of_status = chosen[response.status]
            if len(of_status) < settings.most:
                of_status.append((group.problem_id, response))
            elif (slot := rng.randrange(seen[response.status])) < settings.most:
                of_status[slot] = (group.problem_id, response)
    return [program for status in Status for program in chosen[status]]


def _agreement(judged: Sequence[tuple[Status, ExecResult]]) -> Summary:
    """For each status, how many programs pass every sample, contradict the status, and fail first in which way."""
    table: Summary = {}
    for status in Status:
        if results := [result for recorded, result in judged if recorded is status]:
            failures = [(result, result.first_failed()) for result in results]
            kinds = Counter(str(result.verdicts[test].kind) for result, test in failures if test is not None)
            passed = sum(result.all_passed for result in results)
            contradict = {Status.ACCEPTED: len(results) - passed, Status.COMPILE_ERROR: passed}.get(status, 0)
            table[status.value] = {"judged": len(results), PASSES: passed, CONTRADICTS: contradict, **kinds}
    return table


def _record(problem: str, response: OfflineResponse, result: ExecResult, suite: TestSuite) -> dict[str, Any]:
    return {
        "id": f"{problem}/{response.origin}",
        "test_cases": suite.to_json(),
        "recorded_response": response.text,
        "recorded_all_tests_pass": response.status is Status.ACCEPTED,
        "status": response.status.value,
        "exec_result": result.to_record(),
    }
