"""A judge in the process of a command, for commands that need no service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cobalt.judge import Judge, JudgeSettings, LocalJudge

Result = TypeVar("Result")


def with_local_judge(work: Callable[[Judge], Awaitable[Result]], settings: JudgeSettings | None = None) -> Result:
    """Run `work` with a judge, and return what it returns.

    Args:
        work: Called once with the judge, which lives until the work has ended.
        settings: Of the judge; None: those of the environment (`JudgeSettings.from_environment`).

    Raises:
        UserError: programs cannot be isolated on this machine.
    """

    async def run() -> Result:
        async with LocalJudge(settings or JudgeSettings.from_environment()) as judge:
            return await work(judge)

    return asyncio.run(run())
