"""The judge of a process of veRL: in the process, at URLs, or the Ray Serve app `evaluator` of a cluster."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from cobalt.judge import ExecResult, Judge
from cobalt.judge.opening import open_judge
from cobalt.judge.wire import JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError, UserError, last_line
from cobalt.stage.retrying import retrying

JUDGE_ATTEMPTS = 14
"""Default number of times a program is sent to a judge elsewhere before its failure is raised; about three minutes."""


class ProcessJudge:
    """The judge that the environment names (`open_judge`), opened by the first program; it ends with the process."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._opened: asyncio.Task[Judge] | None = None
        self._stack = contextlib.AsyncExitStack()

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Run a program; see `Judge`."""
        judge = await self._judge()
        return await judge.judge(code, suite, stop_at_first_failure=stop_at_first_failure)

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide verdicts; see `Judge`."""
        return await (await self._judge()).describe()

    async def _judge(self) -> Judge:
        if self._opened is None:  # a task, so that a sample that is cancelled leaves it to the others
            self._opened = asyncio.create_task(self._stack.enter_async_context(open_judge(attempts=self._attempts)))
        return await asyncio.shield(self._opened)


class ServeJudge:
    """The client of the Ray Serve app of that name, in a process that has joined the cluster.

    Failures of the app are retried with pauses of up to 20 s, and raised after so many attempts; never a verdict.
    """

    def __init__(self, app: str, *, attempts: int = JUDGE_ATTEMPTS) -> None:
        self._app = app
        self._attempts = attempts
        self._handle: Any = None

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Have a program judged by the app; see `Judge`."""
        payload = JudgeRequest(code, suite, stop_at_first_failure).to_payload()
        return ExecResult.from_record(await self._retried("judge", payload))

    async def describe(self) -> Mapping[str, Any]:
        """The app's settings that decide verdicts; see `Judge`."""
        settings: Mapping[str, Any] = await self._retried("describe")
        return settings

    async def _retried(self, method: str, *arguments: Any) -> Any:
        return await retrying(self._attempts, first_pause=0.2, longest_pause=20.0)(self._ask, method, *arguments)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            if self._handle is None:
                self._handle = await asyncio.to_thread(serve.get_app_handle, self._app)
            return await getattr(self._handle, method).remote(*arguments)
        except (RayError, RayServeException) as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserError):
                raise cause from None
            if isinstance(error, RayServeException):
                self._handle = None
            reason = last_line(str(error)) or type(error).__name__
            raise InfrastructureError(f"the judge of the cluster failed: {reason}") from error
