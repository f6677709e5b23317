"""The HTTP checks that both apps share: who may send requests, how large they may be, how long they may take."""

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from cobalt.serving.settings import HttpSettings
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.records import checked
from cobalt.stage.rows import MOST_LEVELS, JsonMeasure, TooManyValues, decode_json

# Headers that proxies set: the visible address is then not the sender's.
_FORWARDED = ("forwarded", "x-real-ip", "via", "x-client-ip", "true-client-ip", "cf-connecting-ip")
_FORWARDED_BEGINNING = "x-forwarded"
MOST_VALUES = 250_000
"""Largest number of JSON values in a body, where an app has no limit of its own. They take up to 16 MiB decoded."""
_BODIES_HELD = 8  # bodies that a replica holds at a time
_HELD_BODY = 16 * 2**20  # bytes up to which so many bodies have room; a longer one has it alone
_SMALL_BODY = 64 * 2**10  # bytes of a body that does not count among those held
_LARGE_BODY = 2**20  # bytes from which a body is decoded in a thread

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)


class Refused(HTTPException):
    """Raised to refuse a request: the HTTP status of the answer, and the reason."""


@contextlib.asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Raises InfrastructureError when the block takes longer than an HTTP request may."""
    late = InfrastructureError(f"no result within {seconds:g} s (max_request_seconds)")
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        raise late from None
    if limit.expired():  # the block has answered its own cancellation
        raise late


def parsed(kind: type[Model], payload: object) -> Model:
    """A decoded body as a model.

    Raises:
        UserError: the body is not an object, or a field is wrong; the message names the first.
    """
    if not isinstance(payload, dict):
        raise UserError("the body must be one JSON object")
    return checked(kind, payload)


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client closes its connection.

    Call it when the request's body has been read: uvicorn itself goes on with a request whose client has gone.

    Raises:
        Refused: the client has gone, so that nobody reads the answer.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(400, "the client has closed the connection")
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait((task, gone))


class Guard:
    """The checks of one app.

    If a token is set, a request needs it; if not, the request must come from the machine itself and ask for it by a
    name of its own. Requests of web pages are refused. A replica holds at most eight bodies of the largest size, from
    their first byte to the answer, and of bodies above 16 MiB as many as fit into 128 MiB, or one. A body that does not
    declare its length counts as the longest until it has arrived. Bodies of up to 64 KiB do not count.

    Args:
        settings: The token, and the limits of a body.
        prefix: The beginning of the app's environment variables, for messages.
        max_values: Largest number of JSON values in a body.
    """

    def __init__(self, settings: HttpSettings, prefix: str, max_values: int = MOST_VALUES) -> None:
        self._token = settings.token.get_secret_value() if settings.token is not None else None
        self._max_bytes, self._max_seconds = settings.max_request_bytes, settings.max_body_seconds
        self._prefix, self._max_values = prefix, max_values
        self._free = max(self._max_bytes, _BODIES_HELD * min(self._max_bytes, _HELD_BODY))
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[Any]:
        """The JSON value in a request's body; the block makes the answer.

        Raises:
            Refused: 403 for a request of a web page, or, if no token is set, of another machine or for another host;
                401 for a missing or wrong token; 408 for a body that does not arrive in time; 413 for one that is too
                long; 422 for one with too many values; 503 if the bodies of other requests leave no room for it; 400
                for one that is not strict UTF-8 JSON, or nested too deeply.
        """
        self.admit(request)
        declared = request.headers.get("content-length", "")
        length = int(declared[:20]) if declared.isascii() and declared.isdecimal() else self._max_bytes
        if length > self._max_bytes:
            raise self._too_long()
        held = length if length > _SMALL_BODY else 0
        try:
            async with asyncio.timeout(self._max_seconds), self._changed:
                await self._changed.wait_for(lambda: held <= self._free)
                self._free -= held
        except TimeoutError:
            raise Refused(503, "other requests have too many bytes in flight: try again") from None
        try:
            body = await self._read(request)
            spare = max(0, held - len(body))  # of a body that does not declare its length
            held -= spare
            await self._give_back(spare)
            yield _decode(body) if len(body) < _LARGE_BODY else await asyncio.to_thread(_decode, body)
        finally:
            await self._give_back(held)

    async def _give_back(self, amount: int) -> None:
        self._free += amount  # first, because the rest may be cancelled
        async with self._changed:
            self._changed.notify_all()

    def admit(self, request: Request) -> None:
        """Check only who sends a request.

        Raises:
            Refused: 403 or 401, as for `body`.
        """
        # A browser sends at least one of the two headers with a page's POST; programs send neither.
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise Refused(403, "requests from web pages are not answered")
        if self._token is None:
            if not (_from_this_machine(request) and all(map(_is_loopback_name, request.headers.getlist("host")))):
                raise Refused(
                    403,
                    "without a token only requests of this machine to localhost are answered: set one for the app"
                    f" ({self._prefix}TOKEN), and send it as `Authorization: Bearer TOKEN`",
                )
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise Refused(401, "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`")

    def _too_long(self) -> Refused:
        return Refused(413, f"the body is longer than {self._max_bytes} bytes (max_request_bytes)")

    async def _read(self, request: Request) -> bytes:
        """The body, read only as far as it keeps to the limits, whatever length it declares."""
        body = bytearray()
        measure = JsonMeasure(self._max_values, MOST_LEVELS)
        try:
            async with asyncio.timeout(self._max_seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self._max_bytes:
                        raise self._too_long()
                    measure.add(piece)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self._max_seconds:g} s (max_body_seconds)") from None
        except ClientDisconnect:
            raise Refused(400, "the body ended early") from None
        except TooManyValues as error:
            raise Refused(422, f"the body has {error}, more than a request can need") from None
        except UserError as error:
            raise Refused(400, f"the body is {error}") from None
        return bytes(body)


def _decode(body: bytes) -> Any:
    """The JSON value of a body, whose values were counted as they came; Refused if it is not strict UTF-8 JSON."""
    try:
        return decode_json(body.decode("utf-8"), most_values=None)
    except UnicodeDecodeError:
        raise Refused(400, "the body is not UTF-8 text") from None
    except UserError as error:
        raise Refused(400, f"the body is {error}") from None


def _from_this_machine(request: Request) -> bool:
    forwarded = any(name in _FORWARDED or name.startswith(_FORWARDED_BEGINNING) for name in request.headers)
    return request.client is not None and not forwarded and _is_loopback(request.client.host)


def _is_loopback_name(host: str) -> bool:
    """Whether a header `Host` names this machine itself, which no name that somebody has made point here does."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return name.removesuffix(".") == "localhost" or _is_loopback(name)


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
