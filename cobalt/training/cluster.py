"""Ray's token, and the check of a cluster that `RAY_ADDRESS` names before Ray is imported.

Whoever can join a Ray cluster can run code as the user that started it. Ray listens on every interface if its address
is not loopback, and only Ray's token keeps others out.
"""

import contextlib
import os
import secrets
from pathlib import Path

from cobalt.stage.errors import ServiceDown, UserError

START_COMMAND = "bash scripts/ray_cluster.sh start"

LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray reads it when it is imported: at "0" it uses 127.0.0.1 as given, otherwise the machine's public address."""

_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # which a head with a token refuses without it


def named_cluster() -> str:
    """The cluster that `RAY_ADDRESS` names; "" if it names none."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address


def keep_token_private(*, create: bool = False) -> None:
    """Make Ray's token file, which Ray itself writes readable by everybody, readable by its owner only.

    With `create` a new token is written if there is none. Raises UserError if the file cannot be changed.
    """
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = _token_path()
    try:
        if path.exists():
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
        elif create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another process was faster
                path.touch(mode=0o600, exist_ok=False)
                path.write_text(secrets.token_hex(32), encoding="ascii")
    except OSError as error:
        raise UserError(f"Ray's token file {path} cannot be kept private: {error.strerror}") from None


def prepare_to_join(address: str) -> None:
    """Check that a cluster answers and takes this user's token, and set what Ray reads of it when it is imported.

    Raises UserError for what is not an address ("auto" is left to Ray) and for a token that this user has not, and
    ServiceDown where no Ray answers, for which Ray itself would try for minutes.
    """
    keep_token_private()
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise UserError(f"RAY_ADDRESS={address} is not an address (HOST:PORT): set it to one, or unset it")
    if host in ("127.0.0.1", "localhost"):
        os.environ[LOOPBACK_VARIABLE] = "0"
    if not asks_for_token(address):
        return
    # Ray itself would repeat a call with a wrong token for 20 s, and write a line each time.
    if not (token := _token()) or asks_for_token(address, token):
        raise UserError(
            f"the Ray cluster at {address} asks for a token, and this user has not the right one: copy"
            " ~/.ray/auth_token from its head (mode 600)"
        )
    os.environ["RAY_AUTH_MODE"] = "token"


def asks_for_token(address: str, token: str | None = None) -> bool:
    """Whether the cluster's head at `address` refuses a call without a token, or with this one; ServiceDown: no Ray."""
    import grpc  # type: ignore[import-untyped]

    sent = (("authorization", f"Bearer {token}"),) if token else None
    try:
        with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            channel.unary_unary(_CALL)(b"", timeout=30.0, metadata=sent)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return True
        no_answer = f"no Ray cluster answers at {address} ({error.code().name})"
        raise ServiceDown(f"{no_answer}: start one with `{START_COMMAND}`, or set RAY_ADDRESS to another") from None
    return False


def _token_path() -> Path:
    """The file that Ray reads its token from, unless the variable `RAY_AUTH_TOKEN` holds the token itself."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _token() -> str:
    """The token of this user; "" without one."""
    try:
        return (os.environ.get("RAY_AUTH_TOKEN") or _token_path().read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError):
        return ""
