"""Compare recorded statuses with this project's judge, on the samples of the statements.

Samples are few and easy: a program that was accepted elsewhere must pass them, and one with a compile error must not. A
program that failed elsewhere may pass them. What contradicts is a program in another Python, a problem with several
right answers, or a wrong record. Programs are chosen by a seed, as many of each status.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic.dataclasses import dataclass

from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.datasets.readings import judge_recorded
from cobalt.judge import Judge, judge_or_local, programs_at_a_time
from cobalt.judge.verdict import ExecResult, VerdictKind
from cobalt.problems.problem import TestSuite, load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.run import READ, Input, Outcome, Output, stage, whole
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
    """The programs with their verdicts (JSONL), which `python -m cobalt.judge check-recorded` reads, too."""
    most: int = 200
    """Maximum number of programs of each status."""
    seed: int = 42
    """Seed of the choice of programs."""

    def __post_init__(self) -> None:
        """Raise UserError if the number of programs is below 1."""
        if self.most < 1:
            raise UserError(f"most is {self.most}: it must be 1 or more")


@stage
async def check_groups(settings: CheckSettings, judge: Judge | None = None) -> Outcome:
    """Judge the programs, write them with their verdicts, and make a table of agreement by status.

    Args:
        settings: What to do.
        judge: Judges the programs; None: a judge in this process.

    Raises:
        UserError: bad input, or a result that cannot be written or that other settings made.
        InfrastructureError: the judge failed; nothing is written.
    """
    suites = {str(problem.id): problem.tests for problem in load_problems(settings.problems_file)}
    chosen = choose_programs(settings, frozenset(suites))
    if not chosen:
        raise UserError(f"{settings.problems_file} has none of the problems of {settings.input_file}")
    results: dict[int, ExecResult] = {}
    async with judge_or_local(judge) as local:

        async def work(item: tuple[int, dict[str, Any]]) -> None:
            index, program = item
            results[index] = await judge_recorded(local, program["code"], suites[program["problem_id"]])

        arguments = {"stage": "check_groups", "most": settings.most, "seed": settings.seed}
        arguments["judge"] = dict(await local.describe())
        with whole(settings.output_file, arguments, [settings.input_file, settings.problems_file]) as result:
            await work_on_all(iter(enumerate(chosen)), work, programs_at_a_time())
            in_order = [results[index] for index in range(len(chosen))]
            result.write(_records(chosen, in_order, suites))
            statuses = [Status(program["status"]) for program in chosen]
            result.summary = agreement(list(zip(statuses, in_order, strict=True)))
    return Outcome(
        summary=result.summary,
        title=f"Agreement by status: {settings.output_file}",
        wrote=str(settings.output_file),
    )


def choose_programs(settings: CheckSettings, problems: frozenset[str]) -> list[dict[str, Any]]:
    """Up to `settings.most` programs of each status, drawn while the file is read.

    Raises:
        UserError: the file is malformed.
    """
    rng = random.Random(settings.seed)
    chosen: defaultdict[Status, list[dict[str, Any]]] = defaultdict(list)
    seen: Counter[Status] = Counter()
    for group in read_groups(settings.input_file):
        for response in group.responses:
            code = response.program
            if group.problem_id not in problems or code is None:
                continue
            seen[response.status] += 1
            program = {"problem_id": group.problem_id, "origin": response.origin, "status": response.status.value}
            program |= {"code": code, "response": response.text}
            of_status = chosen[response.status]
            if len(of_status) < settings.most:
                of_status.append(program)
            elif (place := rng.randrange(seen[response.status])) < settings.most:
                of_status[place] = program
    return [program for status in Status for program in chosen[status]]


def agreement(judged: Sequence[tuple[Status, ExecResult]]) -> Summary:
    """For each status, how many programs pass every sample, contradict the status, and fail first in which way."""
    table: Summary = {}
    for status in Status:
        results = [result for recorded, result in judged if recorded is status]
        if results:
            kinds = Counter(str(kind) for kind in map(_first_failure, results) if kind is not None)
            passed = sum(result.all_passed for result in results)
            contradict = {Status.ACCEPTED: len(results) - passed, Status.COMPILE_ERROR: passed}.get(status, 0)
            table[status.value] = {"judged": len(results), PASSES: passed, CONTRADICTS: contradict, **kinds}
    return table


def _first_failure(result: ExecResult) -> VerdictKind | None:
    place = result.first_failed()
    return None if place is None else result.verdicts[place].kind


def _records(
    chosen: Sequence[Mapping[str, Any]], results: Sequence[ExecResult], suites: Mapping[str, TestSuite]
) -> Iterator[dict[str, Any]]:
    for program, result in zip(chosen, results, strict=True):
        yield {
            "id": f"{program['problem_id']}/{program['origin']}",
            "test_cases": suites[program["problem_id"]].to_json(),
            "recorded_response": program["response"],
            "recorded_all_tests_pass": program["status"] == Status.ACCEPTED,
            "status": program["status"],
            "exec_result": result.to_record(),
        }
