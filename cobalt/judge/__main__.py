"""`python -m cobalt.judge doctor` and `python -m cobalt.judge check-recorded FILE`: the judge from a shell.

Parses flags, calls the library, writes a table. Exit code 1 when a check fails or a verdict differs.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.cli import run_script
from cobalt.judge.doctor import Finding, examine, summary
from cobalt.judge.local import LocalJudge
from cobalt.judge.recheck import recheck
from cobalt.judge.settings import Comparison, JudgeSettings


@dataclass(frozen=True)
class Doctor:
    """Check that isolation really holds on this machine, and say so in plain words."""


@dataclass(frozen=True)
class CheckRecorded:
    """Judge a file's recorded programs again and compare with its recorded verdicts."""

    file: tyro.conf.Positional[Path]
    """JSONL with `test_cases` and either `recorded_response` or `human_solutions`."""
    allow_top_level_return: bool = False
    """Accept programs that `return` outside a function."""
    comparison: Comparison = "strip"
    """How outputs are compared."""
    site_packages: Path | None = None
    """A folder of packages to offer to the programs."""


@dataclass(frozen=True)
class Arguments:
    """The judge of programs."""

    command: tyro.conf.OmitSubcommandPrefixes[
        Annotated[Doctor, tyro.conf.subcommand("doctor")]
        | Annotated[CheckRecorded, tyro.conf.subcommand("check-recorded")]
    ]


def run(arguments: Arguments) -> int:
    """Run the chosen command; returns the exit code."""
    if isinstance(arguments.command, Doctor):
        return asyncio.run(_doctor())
    return asyncio.run(_check_recorded(arguments.command))


async def _doctor() -> int:
    findings: list[Finding] = []
    async for finding in examine(JudgeSettings()):
        findings.append(finding)
        seen = "" if finding.holds else f"\n        {finding.seen}"
        sys.stdout.write(f"{'ok  ' if finding.holds else 'FAIL'}    {finding.claim}{seen}\n")
    sys.stdout.write(summary(findings) + "\n")
    return 0 if all(finding.holds for finding in findings) else 1


async def _check_recorded(command: CheckRecorded) -> int:
    settings = JudgeSettings(
        allow_top_level_return=command.allow_top_level_return,
        comparison=command.comparison,
        site_packages=command.site_packages,
    )
    async with LocalJudge(settings) as judge:
        comparisons = await recheck(command.file, judge)
    for item in comparisons:
        if not item.agrees:
            first = next((v.kind for v in item.result.verdicts if v.kind != "passed"), "passed")
            sys.stdout.write(f"differs: {item.name}: recorded {item.recorded}, judged {first}\n")
    agreed = sum(item.agrees for item in comparisons)
    sys.stdout.write(f"{agreed} of {len(comparisons)} recorded verdicts agree\n")
    return 0 if agreed == len(comparisons) else 1


if __name__ == "__main__":
    run_script(Arguments, run)
