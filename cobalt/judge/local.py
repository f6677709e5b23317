"""`Judge`, the protocol that the library depends on, and `LocalJudge`, a pool of sandboxes in this process.

`cobalt.judge.opening.open_judge` opens a judge, here or behind URLs.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol, Self

from cobalt.judge.asserting import CHECKER, check_suite, decided
from cobalt.judge.grading import grade
from cobalt.judge.prelude import around_program
from cobalt.judge.progress import Progress
from cobalt.judge.sandbox.cgroups import CgroupParent, find_parent
from cobalt.judge.sandbox.isolation import check_paths
from cobalt.judge.sandbox.sandbox import Execution, Sandbox
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.retrying import retrying

logger = logging.getLogger(__name__)

ATTEMPTS = 3
# One more idle sandbox is used for every this many tests of a suite; not more, because each compiles the program again.
TESTS_PER_SHARE = 4

# Outputs of more than this many bytes are compared in a thread, because that may take a second.
LARGE_OUTPUT = 1 << 16


class Judge(Protocol):
    """The protocol of everything that judges a program on a suite."""

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Run a Python program on every test of a suite and compare.

        With `stop_at_first_failure` all tests after the first failing one, in list order, are `not_run`.

        Raises:
            InfrastructureError: the judge failed, not the program.
        """
        ...

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide this judge's verdicts, JSON-able, for a run's manifest.

        Raises:
            ServiceDown: the judge is not running; the message says how to start it.
        """
        ...


class LocalJudge:
    """A pool of sandboxes in this process; use as an async context manager, in one event loop.

    Raises:
        UserError: programs cannot be isolated; at the entry, which builds every sandbox.
    """

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings if settings is not None else JudgeSettings()
        self.restarts = 0  # sandboxes replaced since the start
        self._idle: asyncio.Queue[Sandbox] = asyncio.Queue()
        self._all: set[Sandbox] = set()
        self._waiting = 0  # number of programs that wait for a sandbox
        self._open = False
        self._parent: CgroupParent | None = None  # where the sandboxes' cgroups are made

    async def __aenter__(self) -> Self:
        check_paths(self.settings)
        self._idle = asyncio.Queue()
        self._parent = _cgroup_parent(self.settings)
        self._open = True
        try:
            for _ in range(self.settings.sandboxes):
                sandbox = await self._started()
                self._all.add(sandbox)
                self._idle.put_nowait(sandbox)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every sandbox; programs that are still being judged fail with InfrastructureError."""
        self._open = False
        sandboxes, self._all = self._all, set()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Run `code` on every test of `suite` and compare; see `Judge`."""
        progress = Progress(code, suite, self.settings, stop_at_first_failure)
        result = await self._run(progress)
        if not suite.asserts:
            return result
        values = {index: progress.values[index] for index, passed in enumerate(result.passing) if passed}
        checks = Progress(CHECKER, check_suite(suite, values), self.settings, stop_at_first_failure)
        checked = await self._run(checks) if values else ExecResult([], [], [])
        return decided(suite, result, values, checked, stop_at_first_failure=stop_at_first_failure)

    async def _run(self, progress: Progress) -> ExecResult:
        """Take a program through its suite; raises InfrastructureError if the judge fails at every attempt."""
        queued = time.monotonic()
        async with self._borrowed() as first:
            started = time.monotonic()
            # Only idle sandboxes help with further tests of a suite; to wait for one would block other programs.
            most = min((len(progress.suite) - 1) // TESTS_PER_SHARE, self._idle.qsize())
            shares = [_attempt(progress, first), *(self._help(progress) for _ in range(most))]
            # All of them: one that goes on after a bug in another uses its sandbox.
            ends = await asyncio.gather(*shares, return_exceptions=True)
        failure: BaseException | None = None
        for failure in filter(None, ends):
            if not isinstance(failure, InfrastructureError):
                raise failure
        attempts = 1
        # Tests can also be left without a failure: a test that got its verdict may have broken its sandbox.
        while failure is not None or progress.unfinished:
            if failure is not None and attempts == ATTEMPTS:
                raise failure
            attempts += failure is not None
            async with self._borrowed() as another:
                failure = await _attempt(progress, another)
        ended = time.monotonic()
        return progress.result(queue_seconds=started - queued, run_seconds=ended - started)

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide this judge's verdicts; see `Judge`."""
        return self.settings.decisive()

    @property
    def memory_accounting(self) -> Literal["cgroup", "sum"]:
        """Enforcer of the limit on memory, for an open judge; see `JudgeSettings`."""
        return "sum" if self._parent is None else "cgroup"

    async def execute(self, code: str, stdin: str) -> Execution | str:
        """Run a program once, without a verdict.

        Returns:
            The execution, or the compiler's message if the program does not compile.

        Raises:
            InfrastructureError: the judge failed.
        """
        alone = around_program(TestSuite((), (), prelude=""), self.settings)
        source = code.encode("utf-8", "surrogatepass")
        async with self._borrowed() as sandbox, sandbox.program(source, self.settings, alone) as failure:
            return failure or await sandbox.run(stdin.encode("utf-8", "surrogatepass"))

    async def _help(self, progress: Progress) -> InfrastructureError | None:
        """Run tests of a program in an idle sandbox, if there is one that no program waits for."""
        if self._waiting or self._idle.empty():
            return None
        try:
            async with self._in_use(self._idle.get_nowait()) as usable:
                return await _attempt(progress, usable)
        except InfrastructureError as error:
            return error

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Sandbox]:
        if not self._open:
            raise InfrastructureError("the judge is not open")
        self._waiting += 1
        try:
            sandbox = await self._idle.get()
        finally:
            self._waiting -= 1
        async with self._in_use(sandbox) as usable:
            yield usable

    @asynccontextmanager
    async def _in_use(self, sandbox: Sandbox) -> AsyncIterator[Sandbox]:
        """A sandbox taken from the pool, or its replacement if it is broken; it is returned to the pool at the end."""
        try:
            if not sandbox.healthy:
                sandbox = await self._replaced(sandbox)
            yield sandbox
        finally:
            # A broken sandbox is returned too: the next program replaces it, outside the cancellation of this one.
            self._idle.put_nowait(sandbox)

    async def _replaced(self, broken: Sandbox) -> Sandbox:
        await broken.close()
        sandbox = await self._started()
        if not self._open:
            await sandbox.close()
            raise InfrastructureError("the judge was closed")
        self._all.discard(broken)
        self._all.add(sandbox)
        self.restarts += 1
        logger.warning("a sandbox broke and was replaced", extra={"restarts": self.restarts})
        return sandbox

    async def _started(self) -> Sandbox:
        sandbox = Sandbox(self.settings, self._parent)
        await retrying(5, first_pause=0.2, longest_pause=5.0)(sandbox.start)
        return sandbox


def programs_at_a_time() -> int:
    """Number of programs to give to a judge in this process at a time: a few wait, so that no sandbox does."""
    return JudgeSettings.read().sandboxes + 2


def _cgroup_parent(settings: JudgeSettings) -> CgroupParent | None:
    if settings.unsafe or settings.memory_accounting == "sum":
        return None
    parent = find_parent()
    if parent is None and settings.memory_accounting == "cgroup":
        raise UserError(
            "setting 'memory_accounting': this process cannot make a cgroup with a memory and a pids controller; run it"
            " as root or in a cgroup that systemd delegated (Delegate=yes), or set memory_accounting to auto"
        )
    return parent


async def _attempt(progress: Progress, sandbox: Sandbox) -> InfrastructureError | None:
    """Run tests in one sandbox until none is left or it breaks; returns the failure that broke it, if any."""
    index = progress.take()
    if index is None:
        return None
    try:
        async with sandbox.program(progress.source, progress.settings, progress.around) as failure:
            if failure:
                progress.fail_all(failure)
                index = None
            while index is not None:
                run = await sandbox.run(progress.suite.inputs[index].encode("utf-8", "surrogatepass"))
                facts = (run, progress.suite, index, progress.settings)
                large = len(run.stdout) + len(progress.suite.outputs[index]) > LARGE_OUTPUT
                graded = await asyncio.to_thread(grade, *facts) if large else grade(*facts)
                if progress.suite.asserts:
                    graded = progress.keep_values(index, graded, run.stdout)
                progress.settle(index, graded, run)
                index = progress.take() if sandbox.healthy else None
    except InfrastructureError as error:
        if index is not None:
            progress.give_back(index)
        return error
    return None
