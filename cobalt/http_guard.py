"""What an app behind Ray Serve asks of an HTTP request before it reads it: who sends it, from where, how much.

The same for every app: a token where one is set, and the machine itself where none is; never a web page; a body of
bounded size, in strict UTF-8 JSON. Imports Starlette, so only apps import it.
"""

import hmac
import ipaddress
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr
from starlette.requests import ClientDisconnect, Request

from cobalt.errors import UserError
from cobalt.problem import decode_json

# Set by proxies: the address that is seen is then not the sender's.
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def check_token(token: SecretStr | None) -> SecretStr | None:
    """A validator of the setting `token`: it must fit an HTTP header.

    Raises:
        ValueError: it has other characters than printable ASCII ones, or blanks.
    """
    text = token.get_secret_value() if token is not None else ""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a token consists of printable ASCII characters, without blanks")
    return token


class Refused(Exception):
    """A request that is not read further.

    Attributes:
        status: The HTTP status to answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


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
        """The JSON value that a `POST` request brings.

        Raises:
            Refused: 405 another method; 403 a web page's, or a stranger's where no token is set; 401 without the token;
                413 too long a body; 400 no strict UTF-8 JSON.
        """
        if request.method != "POST":
            raise Refused(405, "send the request by POST")
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
