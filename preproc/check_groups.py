"""Judge programs of groups on the samples of their problems: flags in, one call of `cobalt.datasets.offline.check`."""

import asyncio

from rich.console import Console

from cobalt.cli import run_script
from cobalt.datasets.offline.check import CheckSettings


def main(settings: CheckSettings) -> int:
    """Run, and return the exit code."""
    from cobalt.datasets.offline.check import Summary, check_groups
    from cobalt.judge import JudgeSettings, LocalJudge
    from cobalt.report.summary import summary_table

    judge_settings = JudgeSettings.from_environment()

    async def check() -> Summary:
        async with LocalJudge(judge_settings) as judge:
            return await check_groups(settings, judge, judge_settings.sandboxes + 2)

    Console().print(summary_table(asyncio.run(check()), title=f"Agreement by status: {settings.output_file}"))
    return 0


if __name__ == "__main__":
    run_script(CheckSettings, main)
