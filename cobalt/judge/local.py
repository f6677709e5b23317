"""The judge itself: a pool of sandboxes in this process, and the way from a run to a verdict.

`Judge` is what the rest of the library asks for; `LocalJudge` runs here, `cobalt.judge.client.ServeJudge`
asks the service. Nothing here knows Ray or HTTP.
"""

import asyncio
import time
from types import TracebackType
from typing import Protocol, Self

from cobalt.judge.comparison import outputs_match
from cobalt.judge.feedback import failure_text, not_run_text
from cobalt.judge.sandbox import Run, Sandbox
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind
from cobalt.problem import TestSuite


class Judge(Protocol):
    """Anything that judges a program on a suite."""

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Run `code` on every test of `suite` and compare.

        Raises:
            InfrastructureError: the judge failed, not the program.
        """
        ...


class LocalJudge:
    """A pool of sandboxes in this process; use as an async context manager."""

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings if settings is not None else JudgeSettings()
        self._free: asyncio.Queue[Sandbox] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        for _ in range(self.settings.sandboxes):
            self._free.put_nowait(Sandbox(self.settings))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Run `code` on every test of `suite` and compare; see `Judge`."""
        queued = time.monotonic()
        sandbox = await self._free.get()
        started = time.monotonic()
        passing, feedback, verdicts = [], [], []
        try:
            for given, expected in zip(suite.inputs, suite.outputs, strict=True):
                if stop_at_first_failure and not all(passing):
                    verdict, text = Verdict(VerdictKind.NOT_RUN), not_run_text("an earlier test failed")
                else:
                    run = await sandbox.run(code, given.encode("utf-8", "surrogatepass"))
                    verdict, text = self._verdict(run, given, expected)
                passing.append(verdict.kind is VerdictKind.PASSED)
                feedback.append(text)
                verdicts.append(verdict)
        finally:
            self._free.put_nowait(sandbox)
        ended = time.monotonic()
        return ExecResult(
            passing, feedback, verdicts, self.settings.comparison, not self.settings.unsafe,
            started - queued, ended - started,
        )

    def _verdict(self, run: Run, given: str, expected: str) -> tuple[Verdict, str]:
        settings = self.settings
        kinds = {
            "compile": VerdictKind.COMPILE_ERROR,
            "cpu": VerdictKind.TIME_LIMIT,
            "wall": VerdictKind.WALL_LIMIT,
            "memory": VerdictKind.MEMORY_LIMIT,
            "output": VerdictKind.OUTPUT_LIMIT,
        }
        if run.end != "exit":
            kind = kinds[run.end]
        elif run.status != 0:
            kind = VerdictKind.RUNTIME_ERROR
        elif outputs_match(run.stdout, expected, settings):
            kind = VerdictKind.PASSED
        else:
            kind = VerdictKind.WRONG_ANSWER
        verdict = Verdict(kind, run.cpu_seconds, run.wall_seconds, run.status, run.peak_memory_bytes)
        if kind is VerdictKind.PASSED:
            return verdict, ""
        limits = {
            VerdictKind.TIME_LIMIT: f"{settings.cpu_seconds:g} s",
            VerdictKind.WALL_LIMIT: f"{settings.wall_limit:g} s",
            VerdictKind.MEMORY_LIMIT: f"{settings.memory_bytes >> 20} MiB",
            VerdictKind.OUTPUT_LIMIT: f"{settings.output_bytes >> 10} KiB",
        }
        text = failure_text(
            kind, given, run.stdout.decode("utf-8", "surrogateescape"), expected,
            run.stderr.decode("utf-8", "replace"), limits.get(kind, ""),
        )
        return verdict, text
