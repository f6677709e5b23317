"""What the HTTP side of every Ray Serve app has in common: who may send how much, and how errors are answered.

A request needs the token where one is set, and must come from the machine itself where none is; it is never a web
page's; its body is of bounded size, in strict UTF-8 JSON. `guarded_api` makes the FastAPI application that an app adds
its routes to. Imports FastAPI, so only apps import it.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from cobalt.errors import InfrastructureError, UserError
from cobalt.problem import decode_json

_SHORTEST_TOKEN = 16
# Set by proxies: the address that is seen is then not the sender's.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def check_token(token: SecretStr | None) -> SecretStr | None:
    """A validator of the setting `token`: it must fit an HTTP header, and be long enough that nobody guesses it.

    Raises:
        ValueError: it has fewer than 16 characters, others than printable ASCII ones, or blanks.
    """
    text = token.get_secret_value() if token is not None else ""
    if token is not None and len(text) < _SHORTEST_TOKEN:
        raise ValueError(f"a token has {_SHORTEST_TOKEN} characters or more")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a token consists of printable ASCII characters, without blanks")
    return token


class Refused(HTTPException):
    """A request that is not read further: the HTTP status to answer, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)


def guarded_api() -> FastAPI:
    """An application without routes whose every error is `{"error": reason}`.

    404 and 405 are FastAPI's; a `Refused` has its own status; a `UserError` is 422; an `InfrastructureError` is 503,
    which asks the client to send the request again.
    """
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    api.add_middleware(_RootWithoutSlash)

    @api.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @api.exception_handler(UserError)
    async def wrong(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 422)

    @api.exception_handler(InfrastructureError)
    async def failed(request: Request, error: InfrastructureError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 503)

    return api


class _RootWithoutSlash:
    """Takes an app's own address for its route `/`, in place of a redirect that few clients follow with a `POST`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == scope.get("root_path"):
            scope = {**scope, "path": scope["path"] + "/"}
        await self._app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of one app.

    Attributes:
        token: What a request must bring as `Authorization: Bearer TOKEN`; None: requests from this machine need none,
            and others are refused.
        max_bytes: Longest body.
        variable: The environment variable that sets the token, for messages.
    """

    token: str | None
    max_bytes: int
    variable: str

    async def read(self, request: Request) -> Any:
        """The JSON value that a request brings.

        Raises:
            Refused: 403 for a web page's request, or another machine's where no token is set; 401 without the token;
                413 for too long a body; 400 for one that is not strict UTF-8 JSON.
        """
        self._admit(request)
        body = await self._body(request)
        try:
            return decode_json(body.decode("utf-8"))
        except UnicodeDecodeError:
            raise Refused(400, "the body is not UTF-8 text") from None
        except UserError as error:
            raise Refused(400, f"the body is {error}") from None

    def _admit(self, request: Request) -> None:
        # A browser sends at least one of the two with a page's POST; programs send neither.
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise Refused(403, "requests of web pages are not answered")
        if self.token is None:
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

    async def _body(self, request: Request) -> bytes:
        """The body, read only as far as it may go, whatever length it declares."""
        too_long = Refused(413, f"the body is longer than {self.max_bytes} bytes (max_request_bytes)")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.max_bytes:
            raise too_long
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > self.max_bytes:
                    raise too_long
        except ClientDisconnect:
            raise Refused(400, "the body ended early") from None
        return bytes(body)


def _from_this_machine(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
