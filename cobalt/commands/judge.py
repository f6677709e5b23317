"""The judge on the command line: `python -m cobalt.judge doctor` and `check-recorded FILE`.

Both take the settings from the `COBALT_JUDGE_<NAME>` variables. The exit code is 1 if a check fails or a verdict
differs.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.episode.program import extract_code
from cobalt.judge.doctor import examine
from cobalt.judge.local import Judge, LocalJudge
from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult
from cobalt.problems.problem import TestSuite
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError, naming
from cobalt.stage.rows import read_rows


@dataclass(frozen=True)
class Doctor:
    """Check that isolation holds on this machine, under the settings in the `COBALT_JUDGE_<NAME>` variables."""

    async def run(self) -> int:
        """Print each check, and return the exit code."""
        checks = failed = 0
        async for finding in examine(JudgeSettings.read()):
            checks, failed = checks + 1, failed + (not finding.holds)
            seen = "" if finding.holds else f"\n        {finding.seen}"
            sys.stdout.write(f"{'ok  ' if finding.holds else 'FAIL'}    {finding.claim}{seen}\n")
        if failed:
            said = f"Isolation does NOT hold here: {failed} of {checks} checks failed. Do not judge untrusted programs."
        else:
            said = f"Isolation holds here: all {checks} checks passed (user {os.geteuid()})."
        sys.stdout.write(said + "\n")
        return 1 if failed else 0


@dataclass(frozen=True)
class CheckRecorded:
    """Judge a file's recorded programs again, under the settings in the `COBALT_JUDGE_<NAME>` variables; compare."""

    file: tyro.conf.Positional[Path]
    """JSONL with `test_cases` and either `recorded_response` or `human_solutions`."""

    async def run(self) -> int:
        """Print each verdict that differs, and return the exit code."""
        async with LocalJudge(JudgeSettings.read()) as judge:
            programs, differences = await recheck(self.file, judge)
        if not programs:
            raise UserError(f"{self.file} holds no recorded program")
        agree = f"{programs - len(differences)} of {programs} recorded verdicts agree"
        sys.stdout.write("".join(f"{line}\n" for line in [*differences, agree]))
        return 1 if differences else 0


async def recheck(path: Path, judge: Judge) -> tuple[int, list[str]]:
    """Judge every recorded program of a file again: how many there are, and a line for each that differs, in order.

    The recorded verdict is about the whole suite.

    Raises:
        UserError: the file cannot be read, or a line has neither kind of program.
    """

    async def difference(suite: TestSuite, name: str, recorded: bool, code: str | None) -> str:
        result = ExecResult.no_code(len(suite)) if code is None else await judge.judge(code, suite)
        first = next((verdict.kind for verdict in result.verdicts if verdict.kind != "passed"), "passed")
        return "" if result.all_passed == recorded else f"differs: {name}: recorded {recorded}, judged {first}"

    programs: list[tuple[TestSuite, str, bool, str | None]] = []
    for position, record in read_rows(path):
        with naming(f"{path}, {position}"):
            suite = TestSuite.parse(record.get("test_cases"))
            programs += [(suite, *program) for program in _programs(record)]
    lines = await asyncio.gather(*(difference(*program) for program in programs))
    return len(lines), [line for line in lines if line]


def _programs(record: dict[str, Any]) -> Sequence[tuple[str, bool, str | None]]:
    name = str(record.get("id"))
    response, solutions = record.get("recorded_response"), record.get("human_solutions")
    if isinstance(response, str):
        return [(name, bool(record.get("recorded_all_tests_pass")), extract_code(response))]
    if isinstance(solutions, list):
        return [(f"{name}, solution {position}", True, code) for position, code in enumerate(solutions)]
    raise UserError("the record has neither 'recorded_response' nor 'human_solutions'")


@dataclass(frozen=True)
class Arguments:
    """The judge of programs."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Doctor, tyro.conf.subcommand("doctor")]
        | Annotated[CheckRecorded, tyro.conf.subcommand("check-recorded")]
    ]


def main(arguments: Arguments) -> int:
    """Run the chosen command; returns the exit code."""
    enter_delegated()
    return asyncio.run(arguments.command.run())


if __name__ == "__main__":
    run_script(Arguments, main, program="python -m cobalt.judge")
