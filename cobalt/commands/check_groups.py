"""Judge programs of groups on the samples of their problems: the flags and the work of `preproc/check_groups.py`."""

import asyncio

from rich.console import Console

from cobalt.datasets.offline.check import CheckSettings as Arguments


def main(settings: Arguments) -> int:
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
