"""`UrlJudge`, the client of judges behind URLs: `POST /`, `GET /describe` of the app in `cobalt.serving.judge_app`.

A suite goes to each server once. Later requests name it by its digest, and one that the server has forgotten is sent
again. An infrastructure failure is retried and never becomes a verdict.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from cobalt.judge.verdict import ExecResult
from cobalt.judge.wire import START_ADVICE, digest_of, suite_bytes
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.servers import Servers, encode, reason_of

_UNKNOWN_IN_A_ROW = 8  # servers that a URL may hide, each of which may lack the suite
_SUITES = 128  # whose digests are kept: as many as problems that are worked on at a time, and their hidden tests


class UrlJudge:
    """A judge at one or several URLs; use as an async context manager, in one event loop.

    Args:
        urls: Addresses of the app, such as `http://127.0.0.1:8000/evaluator`.
        token: The app's token, where one is set.
        attempts: Number of times that a program is sent before the failure of a judge is raised.

    Raises:
        UserError: a URL is not one.
    """

    def __init__(self, urls: Sequence[str], token: str | None = None, *, attempts: int = 8) -> None:
        self._servers = Servers(urls, token, name="the judge", start_advice=START_ADVICE, attempts=attempts)
        self._known: dict[str, set[bytes]] = {url: set() for url in self._servers.urls}
        self._digest = lru_cache(_SUITES)(_digest)

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
        digest = self._digest(suite)
        head = b'{"code":%b,"stop_at_first_failure":%b,' % (encode(code), encode(stop_at_first_failure))
        server = ""

        def body(url: str) -> bytes:
            nonlocal server
            server = url
            if digest in self._known[url]:
                return b'%b"suite":"%b"}' % (head, digest)
            return b'%b"test_cases":%b}' % (head, suite_bytes(suite))

        for _ in range(_UNKNOWN_IN_A_ROW):
            answer = await self._servers.post("/", body, accept=(409,))
            if answer.status_code != 409:
                self._known[server].add(digest)
                try:
                    return ExecResult.from_record(json.loads(answer.content))
                except (ValueError, AttributeError, UserError) as error:
                    raise InfrastructureError(f"the judge's answer is not a result ({error})") from None
            self._known[server].discard(digest)
        raise InfrastructureError(f"the judge does not keep a suite: {reason_of(answer)}")

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide the judge's verdicts; see `Judge`.

        Raises:
            UserError: the URLs' settings differ, or the token is wrong.
            ServiceDown: no server answers.
        """
        return await self._servers.describe()


def _digest(suite: TestSuite) -> bytes:
    return digest_of(suite_bytes(suite)).encode()
