"""`UrlJudge`, the client of judges behind URLs: `POST /`, `GET /describe` of the app in `cobalt.serving.judge_app`.

An infrastructure failure is retried and never becomes a verdict.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from cobalt.judge.verdict import ExecResult
from cobalt.judge.wire import START_ADVICE, JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.servers import Servers, encode


class UrlJudge:
    """A judge at one or several URLs; use as an async context manager, in one event loop.

    Args:
        urls: Addresses of the app, such as `http://127.0.0.1:8000/evaluator`.
        token: The app's token, where one is set.

    Raises:
        UserError: a URL is not one.
    """

    def __init__(self, urls: Sequence[str], token: str | None = None) -> None:
        self._servers = Servers(urls, token, name="the judge", start_advice=START_ADVICE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._servers.close()

    async def judge(self, code: str, suite: TestSuite, *, stop_at_first_failure: bool = False) -> ExecResult:
        """Have a program judged; see `Judge`.

        Raises:
            UserError: the server refuses the request: its token, its size, or a field.
            ServiceDown: no server answers; the message says how to start one.
            InfrastructureError: every attempt failed.
        """
        request = JudgeRequest(code, suite, stop_at_first_failure)
        answer = await self._servers.post("/", encode(request.to_payload()))
        try:
            return ExecResult.from_record(json.loads(answer.content))
        except (ValueError, AttributeError, UserError) as error:
            raise InfrastructureError(f"the judge's answer is not a result ({error})") from None

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide the judge's verdicts; see `Judge`.

        Raises:
            UserError: the URLs' settings differ, or the token is wrong.
            ServiceDown: no server answers.
        """
        return await self._servers.describe()
