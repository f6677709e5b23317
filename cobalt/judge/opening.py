"""Opening a judge: behind URLs if there are any, otherwise in this process.

In the process, no sandbox is started before the first program. More than eight sandboxes are spread over child
processes (`cobalt.judge.processes`).
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

from cobalt.judge.local import Judge, LocalJudge
from cobalt.judge.sandbox.isolation import check_paths, find_bwrap
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.service_flags import JudgeFlags
from cobalt.stage.settings import pairs

URL_VARIABLE = "COBALT_JUDGE_URL"
TOKEN_VARIABLE = "COBALT_JUDGE_TOKEN"


def judge_urls(urls: Sequence[str] = ()) -> list[str]:
    """The URLs of judges: those of the flag, else of `COBALT_JUDGE_URL`, else `/evaluator` below `COBALT_HTTP`."""
    if urls:
        return list(urls)
    listed = os.environ.get(URL_VARIABLE, "").split()
    base = os.environ.get("COBALT_HTTP")
    return listed or ([f"{base.rstrip('/')}/evaluator"] if base else [])


@asynccontextmanager
async def open_judge(
    urls: Sequence[str] = (), settings: Sequence[str] | Mapping[str, Any] = (), *, attempts: int = 8
) -> AsyncIterator[Judge]:
    """A judge for as long as the block runs, in one event loop.

    Args:
        urls: Addresses of judges; none: those of `judge_urls`.
        settings: Settings of a judge in this process, as a mapping or as texts key=value. They go before those of
            `COBALT_JUDGE_<NAME>` variables.
        attempts: Number of times that a program is sent to judges at URLs before their failure is raised.

    Raises:
        UserError: a setting is unknown or has a bad value, settings are given for a judge behind a URL, or a URL is
            not one. Programs that cannot be isolated raise with the first of them.
    """
    servers = judge_urls(urls)
    settings = settings if isinstance(settings, Mapping) else pairs(settings)
    if servers and settings:
        raise UserError(
            f"--judge {next(iter(settings))}=...: the judge at {servers[0]} has settings of its own; leave them out, or"
            f" judge in this command (without --judge_url and {URL_VARIABLE})"
        )
    if servers:
        from cobalt.judge.url_judge import UrlJudge

        async with UrlJudge(servers, os.environ.get(TOKEN_VARIABLE) or None, attempts=attempts) as judge:
            yield judge
    else:
        async with AsyncExitStack() as stack:
            yield _JudgeInProcess(JudgeSettings.read(settings), stack)


def using_judge(judge: Judge | None, flags: JudgeFlags | None = None) -> AbstractAsyncContextManager[Judge]:
    """The judge that is given, or that of a stage's flags (`open_judge`), as a context; without flags the default."""
    if judge is not None:
        return nullcontext(judge)
    return open_judge() if flags is None else open_judge(flags.judge_url, flags.judge)


class _JudgeInProcess:
    """A judge whose sandboxes start with the first program and end with `stack`."""

    def __init__(self, settings: JudgeSettings, stack: AsyncExitStack) -> None:
        self._settings, self._stack = settings, stack
        self._starting = asyncio.Lock()
        self._judge: Judge | None = None

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """See `Judge`."""
        from cobalt.judge.processes import SANDBOXES_OF_A_PROCESS, judging_processes

        async with self._starting:
            if self._judge is None:
                started: AbstractAsyncContextManager[Judge] = LocalJudge(self._settings)
                if self._settings.sandboxes > SANDBOXES_OF_A_PROCESS:
                    started = judging_processes(self._settings)
                self._judge = await self._stack.enter_async_context(started)
        return await self._judge.judge(code, suite, stop_at_first_failure=stop_at_first_failure)

    async def describe(self) -> Mapping[str, Any]:
        """See `Judge`. What is missing on this machine shows here, before the first program is sampled."""
        check_paths(self._settings)
        if not self._settings.unsafe:
            find_bwrap()
        return self._settings.decisive()
