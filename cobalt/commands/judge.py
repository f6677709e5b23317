"""The judge on the command line: `python -m cobalt.judge doctor`."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Literal

import tyro

from cobalt.judge.doctor import Finding, examine, summary
from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.judge.settings import JudgeSettings
from cobalt.stage.cli import run_script


@dataclass(frozen=True)
class Arguments:
    """The judge of programs."""

    command: tyro.conf.Positional[Literal["doctor"]]
    """doctor: check that isolation holds on this machine, under the settings in the `COBALT_JUDGE_<NAME>` variables."""


async def _doctor() -> int:
    """Print each check; returns 1 if one fails, else 0."""
    findings: list[Finding] = []
    async for finding in examine(JudgeSettings.from_environment()):
        findings.append(finding)
        seen = "" if finding.holds else f"\n        {finding.seen}"
        sys.stdout.write(f"{'ok  ' if finding.holds else 'FAIL'}    {finding.claim}{seen}\n")
    sys.stdout.write(summary(findings) + "\n")
    return 0 if all(finding.holds for finding in findings) else 1


def main(_: Arguments) -> int:
    """Run the doctor; returns the exit code."""
    enter_delegated()
    return asyncio.run(_doctor())


if __name__ == "__main__":
    run_script(Arguments, main, program="python -m cobalt.judge")
