"""The judge on the command line: `python -m cobalt.judge doctor`; exit code 1 if a check fails."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Literal

import tyro

from cobalt.judge.doctor import Finding, examine, summary
from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.judge.settings import JudgeSettings


@dataclass(frozen=True)
class Arguments:
    """Check that isolation holds on this machine, under the settings in the `COBALT_JUDGE_<NAME>` variables."""

    command: tyro.conf.Positional[Literal["doctor"]]


async def doctor() -> int:
    """Print each check, and return the exit code."""
    findings: list[Finding] = []
    async for finding in examine(JudgeSettings.from_environment()):
        findings.append(finding)
        seen = "" if finding.holds else f"\n        {finding.seen}"
        sys.stdout.write(f"{'ok  ' if finding.holds else 'FAIL'}    {finding.claim}{seen}\n")
    sys.stdout.write(summary(findings) + "\n")
    return 0 if all(finding.holds for finding in findings) else 1


def main(arguments: Arguments) -> int:
    """Run the command; returns the exit code."""
    enter_delegated()
    return asyncio.run(doctor())
