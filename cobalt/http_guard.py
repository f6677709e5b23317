"""The HTTP checks that all Ray Serve apps share: who may send requests, how large they may be, how errors are answered.

If a token is set, a request needs it; if not, the request must come from the machine itself. Requests of web pages are
refused. The body has a size limit and must be strict UTF-8 JSON. `guarded_api` makes the FastAPI application that an
app adds its routes to. Only apps import this module, because it imports FastAPI.
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
from cobalt.rows import decode_json

_SHORTEST_TOKEN = 16
# Headers that proxies set: the visible address is then not the sender's.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def check_token(token: SecretStr | None) -> SecretStr | None:
    """Validate the setting `token`: it must fit an HTTP header and be too long to guess.

    Raises:
        ValueError: the token has fewer than 16 characters, a character that is not printable ASCII, or a blank.
    """
    text = token.get_secret_value() if token is not None else ""
    if token is not None and len(text) < _SHORTEST_TOKEN:
        raise ValueError(f"a token must have {_SHORTEST_TOKEN} characters or more")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a token must consist of printable ASCII characters, without blanks")
    return token


class Refused(HTTPException):
    """Raised to refuse a request: the HTTP status of the answer, and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)


def guarded_api() -> FastAPI:
    """An application without routes that answers every error with `{"error": reason}`.

    404 and 405 are FastAPI's. A `Refused` has its own status. A `UserError` is answered 422. An `InfrastructureError`
    is answered 503, which asks the client to send the request again.
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
    """Serves an app's own address as its route `/`, without a redirect, which few clients follow with a `POST`."""

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
        token: The token that a request must send as `Authorization: Bearer TOKEN`. None: requests from this machine
            need no token, and all others are refused.
        max_bytes: Longest body, in bytes.
        variable: The environment variable that sets the token, for messages.
    """

    token: str | None
    max_bytes: int
    variable: str

    async def read(self, request: Request) -> Any:
        """The JSON value in a request's body.

        Raises:
            Refused: 403 for a request of a web page, or of another machine if no token is set; 401 for a missing or
                wrong token; 413 for a body that is too long; 400 for one that is not strict UTF-8 JSON.
        """
        self.admit(request)
        body = await self._body(request)
        try:
            return decode_json(body.decode("utf-8"))
        except UnicodeDecodeError:
            raise Refused(400, "the body is not UTF-8 text") from None
        except UserError as error:
            raise Refused(400, f"the body is {error}") from None

    def admit(self, request: Request) -> None:
        """Check only who sends a request.

        Raises:
            Refused: 403 or 401, as for `read`.
        """
        # A browser sends at least one of the two headers with a page's POST; programs send neither.
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise Refused(403, "requests from web pages are not answered")
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
        """The body, read only up to the size limit, whatever length it declares."""
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
