"""`ServeJudge`, the client of the judge's Ray Serve app, over the deployment handle.

Failures of the service are retried with backoff and never become a verdict. Ray is imported when the first
program is judged. This module starts neither Ray nor the service.
"""

from collections.abc import Mapping
from typing import Any

from cobalt.judge.verdict import ExecResult
from cobalt.judge.wire import APP_NAME, START_ADVICE, JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.serving.serve_client import find_app, reason
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.retrying import retrying


class ServeJudge:
    """A judge that sends programs to the Ray Serve app of the given name.

    Args:
        app_name: Name of the Serve app.
        attempts: How many times a program is sent before its infrastructure failure is raised.
        longest_wait: Longest pause between two attempts, in seconds.
    """

    def __init__(self, app_name: str = APP_NAME, *, attempts: int = 8, longest_wait: float = 20.0) -> None:
        self._app_name = app_name
        self._attempts = attempts
        self._longest_wait = longest_wait
        self._handle: Any = None

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Have a program judged by the service.

        Raises:
            ServiceDown: there is no Ray cluster or no such app; the message says how to start it.
            InfrastructureError: the service failed at every attempt.
        """
        payload = JudgeRequest(code, suite, stop_at_first_failure).to_payload()
        return ExecResult.from_record(await self._retried("judge", payload))

    async def describe(self) -> Mapping[str, Any]:
        """The service's settings that decide verdicts; see `Judge`."""
        settings: Mapping[str, Any] = await self._retried("describe")
        return settings

    async def _retried(self, method: str, *arguments: Any) -> Any:
        attempts = retrying(self._attempts, first_pause=0.2, longest_pause=self._longest_wait)
        return await attempts(self._ask, method, *arguments)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._handle is None:
            self._handle = await find_app(self._app_name, START_ADVICE)
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        try:
            return await getattr(self._handle, method).remote(*arguments)
        except RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserError):
                raise cause from None
            raise InfrastructureError(f"the judge service failed: {reason(error)}") from error
        except RayServeException as error:
            self._handle = None
            raise InfrastructureError(f"the judge service failed: {reason(error)}") from error
