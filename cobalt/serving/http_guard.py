"""The HTTP checks that all Ray Serve apps share: who may send requests, how large they may be, how errors are answered.

If a token is set, a request needs it; if not, the request must come from the machine itself, and ask for it by a name
of its own. Requests of web pages are refused. The body must be strict UTF-8 JSON. Its bytes, its values, its depth and
the time in which it arrives have limits, and so have the bytes of all bodies that a replica holds. `guarded_api` makes
the FastAPI application that an app adds its routes to. Only apps import this module, because it imports FastAPI.
"""

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from cobalt.serving.http_settings import HttpSettings
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.json_measure import MOST_LEVELS, JsonMeasure, TooManyValues
from cobalt.stage.rows import decode_json

# Headers that proxies set: the visible address is then not the sender's.
_FORWARDED = ("forwarded", "x-real-ip", "via", "x-client-ip", "true-client-ip", "cf-connecting-ip")
_FORWARDED_BEGINNING = "x-forwarded"
MOST_VALUES = 250_000
"""Largest number of JSON values in a body, where an app has no limit of its own. They take up to 16 MiB decoded."""
_BODIES_HELD = 8  # bodies that a replica holds at a time
_HELD_BODY = 16 * 2**20  # bytes up to which so many bodies have room; a longer one has it alone
_SMALL_BODY = 64 * 2**10  # bytes of a body that does not count among those held
_LARGE_BODY = 2**20  # bytes from which a body is decoded in a thread
_ANSWERED = "cobalt.answered"  # in a request's scope: what is to be done when it has been answered

TOO_DEEP = "a field is nested too deeply"


class Refused(HTTPException):
    """Raised to refuse a request: the HTTP status of the answer, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)


def guarded_api(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """An application without routes that answers every error with `{"error": reason}`.

    `lifespan` opens and closes what its routes need.

    404 and 405 are FastAPI's. A `Refused` has its own status. A `UserError` is answered 422. An `InfrastructureError`
    is answered 503, which asks the client to send the request again. A value that is nested too deeply for a function
    of Python is answered 400.
    """
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    api.add_middleware(_AroundRequests)

    @api.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @api.exception_handler(RecursionError)
    async def too_deep(request: Request, error: RecursionError) -> JSONResponse:
        return JSONResponse({"error": TOO_DEEP}, 400)

    @api.exception_handler(UserError)
    @api.exception_handler(InfrastructureError)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 422 if isinstance(error, UserError) else 503)

    return api


class _AroundRequests:
    """Gives back what a request has held when it has been answered or given up.

    It also serves an app's own address as its route `/`, without a redirect, which few clients follow with a `POST`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as answered:
            scope = {**scope, _ANSWERED: answered}
            if scope["type"] == "http" and scope["path"] == scope.get("root_path"):
                scope["path"] += "/"
            await self._app(scope, receive, send)


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


def field_error(error: ValidationError) -> UserError:
    """The first error of a malformed body as a sentence that names the field."""
    first = error.errors()[0]
    return UserError(f"field {'.'.join(map(str, first['loc']))!r}: {first['msg']}")


class _Budget:
    """A number of bytes that requests share."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._changed = asyncio.Condition()

    async def take(self, amount: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: amount <= self._free)
            self._free -= amount

    async def give_back(self, amount: int) -> None:
        self._free += amount  # first, because the rest may be cancelled
        async with self._changed:
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of one app.

    A replica holds at most eight bodies of the largest size, from their first byte to the answer, and of bodies above
    16 MiB as many as fit into 128 MiB, or one. A body that does not declare its length counts as the longest until it
    has arrived. A request that finds no room waits for it, up to `max_seconds`. Bodies of up to 64 KiB do not count.

    Attributes:
        token: The token that a request must send as `Authorization: Bearer TOKEN`. None: requests from this machine
            need no token, and all others are refused.
        max_bytes: Longest body, in bytes.
        variable: The environment variable that sets the token, for messages.
        max_values: Largest number of JSON values in a body.
        max_seconds: Longest time in which a body must arrive, in seconds.
    """

    token: str | None
    max_bytes: int
    variable: str
    max_values: int = MOST_VALUES
    max_seconds: float = 30.0
    _held: _Budget = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_held", _Budget(max(self.max_bytes, _BODIES_HELD * min(self.max_bytes, _HELD_BODY))))

    @classmethod
    def of(cls, settings: HttpSettings, prefix: str, max_values: int = MOST_VALUES) -> Self:
        """The guard of an app whose settings have variables that begin with `prefix`."""
        token = settings.token.get_secret_value() if settings.token is not None else None
        return cls(token, settings.max_request_bytes, prefix + "TOKEN", max_values, settings.max_body_seconds)

    async def read(self, request: Request) -> Any:
        """The JSON value in a request's body.

        Raises:
            Refused: 403 for a request of a web page, or, if no token is set, of another machine or for another host;
                401 for a missing or wrong token; 408 for a body that does not arrive in time; 413 for one that is too
                long; 422 for one with too many values; 503 if the bodies of other requests leave no room for it; 400
                for one that is not strict UTF-8 JSON, or nested too deeply.
        """
        self.admit(request)
        declared = request.headers.get("content-length", "")
        length = int(declared[:20]) if declared.isascii() and declared.isdecimal() else self.max_bytes
        if length > self.max_bytes:
            raise self._too_long()
        held = length if length > _SMALL_BODY else 0
        try:
            async with asyncio.timeout(self.max_seconds):
                await self._held.take(held)
        except TimeoutError:
            raise Refused(503, "other requests have too many bytes in flight: try again") from None
        async with contextlib.AsyncExitStack() as reading:
            # Until the request has been answered, or, outside an app of `guarded_api`, until it has been read.
            request.scope.get(_ANSWERED, reading).push_async_callback(lambda: self._held.give_back(held))
            body = await self._body(request)
            spare = max(0, held - len(body))  # of a body that does not declare its length
            held -= spare
            await self._held.give_back(spare)
            return await _decoded(body)

    def admit(self, request: Request) -> None:
        """Check only who sends a request.

        Raises:
            Refused: 403 or 401, as for `read`.
        """
        # A browser sends at least one of the two headers with a page's POST; programs send neither.
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise Refused(403, "requests from web pages are not answered")
        if self.token is None:
            if not all(map(_is_loopback_name, request.headers.getlist("host"))):
                raise Refused(
                    403,
                    "without a token only requests to localhost are answered, and this one is for another host (its"
                    f" header Host): set a token for the app ({self.variable})",
                )
            if not _from_this_machine(request):
                raise Refused(
                    403,
                    f"requests from other machines need a token: set one for the app ({self.variable}), and send it as"
                    " `Authorization: Bearer TOKEN`",
                )
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise Refused(401, "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`")

    def _too_long(self) -> Refused:
        return Refused(413, f"the body is longer than {self.max_bytes} bytes (max_request_bytes)")

    async def _body(self, request: Request) -> bytes:
        """The body, read only as far as it keeps to the limits, whatever length it declares."""
        body = bytearray()
        measure = JsonMeasure(self.max_values, MOST_LEVELS)
        try:
            async with asyncio.timeout(self.max_seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self.max_bytes:
                        raise self._too_long()
                    measure.add(piece)
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.max_seconds:g} s (max_body_seconds)") from None
        except ClientDisconnect:
            raise Refused(400, "the body ended early") from None
        except TooManyValues as error:
            raise Refused(422, f"the body has {error}, more than a request can need") from None
        except UserError as error:
            raise Refused(400, f"the body is {error}") from None
        return bytes(body)


async def _decoded(body: bytes) -> Any:
    """The JSON value of a body; a large one is decoded in a thread."""

    def decode() -> Any:
        return decode_json(body.decode("utf-8"), most_values=None)  # they were counted as they came

    try:
        return decode() if len(body) < _LARGE_BODY else await asyncio.to_thread(decode)
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
