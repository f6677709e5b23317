"""Requests to servers that answer alike, such as the replicas of a judge: `Servers`, the pool of their URLs.

A request goes to the server with the fewest open requests. A server that loses connections, or is busy three times in a
row, is left out until it answers again. Failures that another attempt can repair are retried; refusals are the user's
mistakes, in the server's own words. What is sent and answered is up to the caller.
"""

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any
from urllib.request import getproxies

import httpx

from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError
from cobalt.stage.retrying import retrying

logger = logging.getLogger(__name__)

Content = bytes | Callable[[str], bytes]
"""The body of a request, or what makes it for the URL that gets it."""

UNIX = "unix:"
"""A URL `unix:PATH` is the app at `/` of the server on this socket."""

ASKED_AGAIN = 10.0
"""Seconds after which a server that was left out is asked whether it answers."""

_BUSY_IN_A_ROW = 3
_ANSWER_SECONDS = 10.0
_IDLE_SECONDS = 4.0  # below the 5 s after which uvicorn closes a connection
# A machine that has gone without a word is noticed after a minute, however long its answer may take.
_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class Servers:
    """A pool of URLs at which the same service answers; for one event loop.

    Args:
        urls: Addresses of the app, such as `http://127.0.0.1:8000/evaluator`, or `unix:PATH`.
        token: Sent as `Authorization: Bearer TOKEN`; None: no token is sent.
        name: The service in messages, such as "the judge".
        start_advice: Advice on how to start it, for the message where none answers.
        attempts: Number of times that a request is sent before its failure is raised.
        longest_wait: Longest pause between two attempts, in seconds.

    Raises:
        UserError: there is no URL, or one is not the URL of a server.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None = None,
        *,
        name: str,
        start_advice: str,
        attempts: int = 8,
        longest_wait: float = 20.0,
    ) -> None:
        if not urls:
            raise UserError(f"{name} has no URL: {start_advice}")
        self.name, self._advice = name, start_advice
        self._retrying = retrying(attempts, first_pause=0.2, longest_pause=longest_wait)
        self._servers = [_Server(url, token, name) for url in dict.fromkeys(urls)]
        self._answered = False
        self._description: dict[str, Any] | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs in the order in which they were given, each once."""
        return [server.url for server in self._servers]

    async def post(self, path: str, content: Content, *, accept: Collection[int] = ()) -> httpx.Response:
        """Send a request to one of the servers, again where another attempt can help; returns a successful answer.

        Args:
            path: Path below the URL of the app, from its `/`.
            content: A JSON text (`encode`), or what makes it for the URL that gets the request.
            accept: Statuses above 399 that are answers, too.

        Raises:
            UserError: the server refuses the request (a status below 500, but 408, 409 and 429).
            ServiceDown: none of the servers answers; the message says how to start one.
            InfrastructureError: every attempt failed.
        """
        try:
            answer: httpx.Response = await self._retrying(self._once, path, content, accept)
        except InfrastructureError as error:
            if isinstance(error, ServiceDown) or not all(server.out for server in self._servers):
                raise
            raise self._down() from error
        return answer

    async def ask_all(self, path: str, *, accept: Collection[int] = ()) -> list[httpx.Response]:
        """The answers to `GET path` of all servers that answer; raises as `post`."""
        ends: list[Any] = await asyncio.gather(
            *(self._retrying(self._send, server, path, None, accept) for server in self._servers),
            return_exceptions=True,
        )
        failures: list[InfrastructureError] = []
        for server, end in zip(self._servers, ends, strict=True):
            # A server that is not left out would get requests, and nobody would know its answer.
            if isinstance(end, InfrastructureError) and server.out:
                failures.append(end)
            elif isinstance(end, BaseException) and not isinstance(end, httpx.RequestError):
                raise end
        answers = [end for end in ends if isinstance(end, httpx.Response)]
        if not answers:
            raise failures[0] if failures else self._down()
        return answers

    async def describe(self) -> dict[str, Any]:
        """Answer that all servers give to `GET /describe`.

        Raises:
            UserError: they differ, so that results would depend on who answers; or as `post`.
            ServiceDown: none answers.
        """
        if self._description is None:
            answers = await self.ask_all("/describe")
            first = _object(answers[0])
            for answer in answers:
                _check(answer, first)
            self._description = first
        return self._description

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _once(self, path: str, content: Content, accept: Collection[int]) -> httpx.Response:
        server = await self._choose()
        try:
            return await self._send(server, path, content, accept)
        except httpx.RequestError as error:
            raise InfrastructureError(f"{self.name} at {server.url}: {error or type(error).__name__}") from error

    async def _choose(self) -> "_Server":
        """The server with the fewest open requests of those that answer; those left out are asked when it is time."""
        all_out, now = all(server.out for server in self._servers), time.monotonic()
        due = [server for server in self._servers if server.out and (all_out or now - server.asked > ASKED_AGAIN)]
        for server in due:  # in the background, where no request waits for the answer
            if server.probe is None or server.probe.done():
                server.probe = asyncio.create_task(self._ask_again(server))
        probes = [server.probe for server in due if server.probe is not None]
        pending = set(probes)
        while pending and all(server.out for server in self._servers):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        answering = [server for server in self._servers if not server.out]
        if answering:
            return min(answering, key=lambda server: server.open)
        for probe in probes:
            if (refusal := probe.result()) is not None:
                raise refusal
        if not self._answered:
            raise self._down()  # it has never been there: nobody waits for it
        raise InfrastructureError(f"{self.name} does not answer ({', '.join(self.urls)})")

    async def _ask_again(self, server: "_Server") -> UserError | None:
        """Count a server in that was left out, if it answers again; the error if its settings are others now."""
        server.asked = time.monotonic()
        try:
            answer = await server.send("/describe", None)
        except httpx.RequestError:
            return None
        if self._description is not None and answer.is_success:
            try:
                _check(answer, self._description)
            except UserError as error:
                logger.warning("%s: it gets no requests", error)
                return error
        if not answer.is_server_error:
            server.count_in()
        return None

    async def _send(
        self, server: "_Server", path: str, content: Content | None, accept: Collection[int]
    ) -> httpx.Response:
        answer = await server.send(path, content)
        self._answered = True
        if answer.is_success or answer.status_code in accept:
            return answer
        reason = f"{self.name} at {server.url}: {reason_of(answer)}"
        if answer.status_code in (408, 409, 429) or answer.is_server_error:
            raise InfrastructureError(reason)
        raise UserError(reason)

    def _down(self) -> ServiceDown:
        return ServiceDown(f"{self.name} does not answer at {', '.join(self.urls)}: {self._advice}")


class _Server:
    """One URL with its connections."""

    def __init__(self, url: str, token: str | None, name: str) -> None:
        self.url = url
        self.open = 0  # requests in flight
        self.out = False  # whether it is left out
        self.asked = 0.0  # when it was last asked whether it answers
        self.probe: asyncio.Task[UserError | None] | None = None  # asks whether it answers again
        self._busy = 0  # answers in a row that it is busy
        self._token = token
        # Each has one connection: httpx looks through all connections of a client for each request, several times.
        self._clients: list[httpx.AsyncClient] = []
        self._idle: list[httpx.AsyncClient] = []
        self._socket = url.removeprefix(UNIX) if url.startswith(UNIX) else None
        parsed = server_url(url if self._socket is None else "http://localhost")
        if parsed is None:
            raise UserError(f"{name}: {url!r} is not the URL of a server, such as http://127.0.0.1:8000")
        self._base = parsed

    async def send(self, path: str, content: Content | None) -> httpx.Response:
        """The answer to a `POST`, however long it takes, or without content to a `GET`, within 10 s.

        Raises:
            httpx.RequestError: there was none.
        """
        self.open += 1
        client = self._idle.pop() if self._idle else self._connected()
        try:
            answer = await client.request(
                "GET" if content is None else "POST",
                path,
                content=content(self.url) if callable(content) else content,
                headers={"Content-Type": "application/json"} if content is not None else {},
                timeout=httpx.Timeout(_ANSWER_SECONDS if content is None else None, connect=_ANSWER_SECONDS),
            )
        except httpx.RequestError:
            self._leave_out("it does not answer")
            raise
        finally:
            self.open -= 1
            self._idle.append(client)
        self._busy = self._busy + 1 if answer.status_code in (503, 504) else 0
        if self._busy >= _BUSY_IN_A_ROW:
            self._leave_out(f"it is busy ({reason_of(answer)})")
        return answer

    def count_in(self) -> None:
        """Give the server requests again."""
        if self.out:
            logger.warning("%s answers again", self.url)
        self.out, self._busy = False, 0

    async def close(self) -> None:
        """Close the connections."""
        if self.probe is not None:
            self.probe.cancel()
        await asyncio.gather(*(client.aclose() for client in self._clients))
        self._clients, self._idle = [], []

    def _leave_out(self, cause: str) -> None:
        if not self.out:
            logger.warning("%s is left out until it answers: %s", self.url, cause)
        self.out, self.asked = True, time.monotonic()

    def _connected(self) -> httpx.AsyncClient:
        """One more client; it belongs to the event loop of its first request."""
        host = self._base.host
        local = host in ("localhost", "::1") or host.startswith("127.")
        limits = httpx.Limits(max_connections=1, keepalive_expiry=_IDLE_SECONDS)
        client = httpx.AsyncClient(
            base_url=self._base,
            headers={} if self._token is None else {"Authorization": f"Bearer {self._token}"},
            # A client with a transport of its own asks no proxy; none would reach this machine's loopback.
            transport=None
            if getproxies() and not local
            else httpx.AsyncHTTPTransport(
                verify=_certificates() if self._base.scheme == "https" else False,
                limits=limits,
                uds=self._socket,
                socket_options=[] if self._socket else _ALIVE,
            ),
            limits=limits,
        )
        self._clients.append(client)
        return client


@cache
def _certificates() -> ssl.SSLContext:
    """Reading the certificates takes longer than a request."""
    return httpx.create_ssl_context()


def encode(value: Any) -> bytes:
    """A value as JSON; halves of surrogate pairs, which have no UTF-8 form, are replaced, as in records of results."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def reason_of(answer: httpx.Response) -> str:
    """Reason why a server refuses, in its own words: one of this project's apps, of OpenAI's routes, or of others."""
    body = _object(answer)
    reason = body.get("error") or body.get("detail") or body.get("message")
    if isinstance(reason, dict):
        reason = reason.get("message")
    return str(reason) if reason else f"status {answer.status_code} {answer.text[:200].strip()}".strip()


def _object(answer: httpx.Response) -> dict[str, Any]:
    """An answer that is a JSON object; {} for others."""
    try:
        body = json.loads(answer.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _check(answer: httpx.Response, first: dict[str, Any]) -> None:
    """Raise UserError unless an answer is a description, and the same as the first one."""
    description = _object(answer)
    if not description:
        raise UserError(f"{answer.request.url} does not answer with a description: it is another kind of server")
    for field in sorted({*first, *description}):
        if first.get(field) != description.get(field):
            raise UserError(
                f"{answer.request.url} has {field}={description.get(field)}, and another or the same server before"
                f" {first.get(field)}: results would depend on who answers; start all with the same settings"
            )


def server_url(url: str) -> httpx.URL | None:
    """The URL of a server; None for any other text."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return None
    return parsed if parsed.scheme in ("http", "https") and parsed.host else None
