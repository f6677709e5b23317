"""Joining a Ray cluster: whether the cluster asks for a token, the token file of this user, and how to join.

Whoever can join a Ray cluster can run code as the user that started it. Ray listens on every interface if its address
is not loopback, and each replica of Ray Serve does so at any address. Only Ray's token keeps others out. The token must
reach no other user's Ray, and Ray's sockets and logs, which it makes writable for everybody, must lie in a private
folder. Ray is imported inside the functions.
"""

import contextlib
import logging
import os
import secrets
import socket
import stat
import threading
from pathlib import Path

import tenacity

from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError, last_line

logger = logging.getLogger(__name__)

START_COMMAND = "bash scripts/ray_cluster.sh start"

_ADVICE = f"start one with `{START_COMMAND}`, or set RAY_ADDRESS to another"
_UNAUTHENTICATED_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_ANSWER_SECONDS = 10.0
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
_JOIN_SECONDS = 60.0

# A process joins a cluster only once, even if many of its tasks need it at the same time.
_joining = threading.Lock()


def token_path() -> Path | None:
    """The file that Ray reads its token from; None if the variable `RAY_AUTH_TOKEN` holds the token itself."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return None
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def keep_token_private(*, create: bool = False) -> None:
    """Make the token file readable by its owner only; Ray itself writes it readable by everybody.

    Args:
        create: Write a new token if there is none.

    Raises:
        UserError: the file cannot be written, or its mode cannot be changed.
    """
    path = token_path()
    if path is None:
        return
    try:
        if create and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as handle:
                handle.write(secrets.token_hex(32))
        elif path.exists() and path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except FileExistsError:
        pass  # another process was faster
    except OSError as error:
        raise UserError(f"Ray's token file {path} cannot be kept private: {error.strerror}") from None


def private_folder() -> Path:
    """A folder of this user alone in which Ray may keep its files, as the value of `RAY_TMPDIR`; made if missing.

    Ray gives everybody write access to its own folder (`ray` in this one), so only a folder around it keeps others from
    its sockets and logs. It is the folder for temporary files (`RAY_TMPDIR`, else `TMPDIR`, else /tmp) if that is
    private, else `cobalt-ray-UID` in it. `scripts/ray_cluster.sh` takes the same.

    Raises:
        UserError: the folder cannot be made, or is another user's.
    """
    folder = _private_path()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} for Ray's files cannot be made: {error.strerror}") from None
    if not _is_private(folder):
        raise UserError(
            f"the folder {folder} for Ray's files is not this user's alone: set RAY_TMPDIR to a folder with mode 700"
        )
    return folder


def _private_path() -> Path:
    base = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
    return base if _is_private(base) else base / f"cobalt-ray-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077


def asks_for_token(address: str, token: str | None = None) -> bool:
    """Whether the cluster whose head listens at `address` ("host:port") refuses a call without a token, or with this.

    What the settings of this process say of tokens does not matter.

    Raises:
        InfrastructureError: nothing answers at the address, or what answers is not Ray.
    """
    import grpc  # type: ignore[import-untyped]

    sent = (("authorization", f"Bearer {token}"),) if token else None
    try:
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_attempt(3),
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            ),
            reraise=True,
        ):
            with attempt, grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
                channel.unary_unary(_UNAUTHENTICATED_CALL)(b"", timeout=_ANSWER_SECONDS, metadata=sent)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return True
        raise InfrastructureError(
            f"no Ray cluster answers at {address} ({error.code().name}): start one with `{START_COMMAND}`, or set"
            " RAY_ADDRESS to another"
        ) from None
    return False


def running_cluster(*, any_local: bool = False) -> str | None:
    """The address of the cluster that this process has joined or would join; None if there is none.

    Also None for a Ray Client (`ray://`), which does not learn its cluster's address. A cluster of another user counts
    only if `RAY_ADDRESS` names it, because it would get this user's token.

    Args:
        any_local: If `ray start` has started no cluster, take any other Ray of this user on this machine. Clients do
            so, and `serve run` does not.

    Raises:
        UserError: `RAY_ADDRESS` is not an address.
    """
    import ray

    if ray.is_initialized():
        joined: str = ray.get_runtime_context().gcs_address
        return joined
    try:
        found = _found(any_local)
        if found is not None and not _listens(found) and _is_of_this_machine(found):
            _stay_on_loopback()
            found = _found(any_local)
    except (ValueError, OSError):
        raise UserError(f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS', '')} is not an address (HOST:PORT)") from None
    return found


def _found(any_local: bool) -> str | None:
    from ray._common.utils import get_default_ray_temp_dir
    from ray._private.services import canonicalize_bootstrap_address, find_gcs_addresses

    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        return None
    # Everybody can write into Ray's usual folder, and so name a cluster of their own in it.
    private = _private_path() / "ray"
    usual = Path(get_default_ray_temp_dir())
    started = [folder for folder in (private, usual) if _is_own_file(folder / "ray_current_cluster")]
    found: str | None
    try:
        found = canonicalize_bootstrap_address("auto" if any_local else None, temp_dir=str([*started, private][0]))
    except ConnectionError:  # raised if there is no cluster
        return None
    named = os.environ.get("RAY_ADDRESS", "") not in ("", "auto", "local")
    if found is None or named or not _is_another_users(found):
        return found
    own = sorted(address for address in find_gcs_addresses() if not _is_another_users(address))
    return own[0] if any_local and own else None


def _is_own_file(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _is_another_users(address: str) -> bool:
    """Whether an address is of this machine, and a process of another user listens at its port."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))  # works with this machine's addresses alone
    except OSError:
        return False
    users = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = row.split()
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == int(port):
                    users.add(int(user))
    return bool(users - {os.getuid()})


def _is_of_this_machine(address: str) -> bool:
    from ray._private.services import get_node_ip_address

    own: str = get_node_ip_address()
    return address.rpartition(":")[0] == own


def _stay_on_loopback() -> None:
    """Have Ray use 127.0.0.1; by default it replaces that by the machine's public address.

    Ray reads the environment variable for this when it is imported. `serve run` imports Ray before this call, so the
    constant is set as well; the variable is for child processes.
    """
    from ray._private import ray_constants

    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def bring_token(address: str) -> None:
    """Have this process send its user's token to a cluster that asks for one; call this before joining.

    Raises:
        UserError: the cluster refuses this user's token, or there is none, or `RAY_AUTH_MODE` says not to send it.
        InfrastructureError: nothing answers at the address, or what answers is not Ray. Ray itself would try for
            minutes.
    """
    keep_token_private()
    if not asks_for_token(address):
        return
    token = _token()
    # Ray itself would repeat a call with a wrong token for 20 s, and write a line each time.
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token" or not token or asks_for_token(address, token):
        raise UserError(
            f"the Ray cluster at {address} asks for a token, and this user has not the right one: copy"
            " ~/.ray/auth_token from its head (mode 600), and unset RAY_AUTH_MODE"
        )
    if "RAY_AUTH_MODE" in os.environ:
        return
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it advises turning the token off
    # Ray does this by itself for a cluster that it finds on this machine, but not for one at RAY_ADDRESS. To set the
    # environment variable is not enough, because Ray has read it when it was imported.
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _token() -> str:
    """The token of this user; "" without one."""
    path = token_path()
    try:
        return (os.environ["RAY_AUTH_TOKEN"] if path is None else path.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def connect(address: str) -> None:
    """Connect this process to a cluster, within 60 s; Ray itself has no limit for some of its steps.

    Raises:
        ConnectionError: the cluster refuses, or has no node on this machine, or does not answer in time.
        AuthenticationError: Ray's own, for a wrong token.
    """
    import ray

    raised: list[BaseException] = []

    def initialize() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    # Ray's waiting cannot be interrupted, so a thread waits for it; a daemon, which does not keep the process alive.
    thread = threading.Thread(target=initialize, daemon=True)
    thread.start()
    thread.join(_JOIN_SECONDS)
    if thread.is_alive():
        raise ConnectionError(f"it was not joined within {_JOIN_SECONDS:g} s")
    if raised:
        raise raised[0]


def join(failure: str = "the Ray cluster cannot be used", advice: str = _ADVICE) -> None:
    """Join the running Ray cluster (`RAY_ADDRESS` or the local one) if this process has not joined one.

    The user's token is sent to a cluster that asks for one, even without `RAY_AUTH_MODE=token`. Each step has a time
    limit. Child processes join the cluster in the same way.

    Args:
        failure: What is not possible without the cluster, as the beginning of a sentence.
        advice: What the user should do if there is no cluster, as the end of a sentence.

    Raises:
        ServiceDown: there is no cluster, or it cannot be joined.
        UserError: `RAY_ADDRESS` is not an address, or this user has not the cluster's token.
    """
    given = os.environ.get("RAY_ADDRESS", "")
    named = given not in ("", "auto", "local")
    if named:
        _check_address(given, failure, advice)  # before Ray is imported, which takes seconds
    import ray
    from ray.exceptions import AuthenticationError

    with _joining:
        if ray.is_initialized():
            return
        address = running_cluster(any_local=True)
        if address is None and not given.startswith("ray://"):
            raise ServiceDown(f"{failure}, because Ray is not running: {advice}")
        origin = f"RAY_ADDRESS={given}" if named else f"{address} (found here, because RAY_ADDRESS is not set)"
        try:
            if address is not None:
                bring_token(address)
        except InfrastructureError:
            raise ServiceDown(f"{failure}, because no Ray cluster answers at {origin}: {advice}") from None
        try:
            connect(address or "auto")
        except (ConnectionError, AuthenticationError, RuntimeError) as error:
            raise ServiceDown(
                f"{failure}, because the Ray cluster at {origin} cannot be joined ({last_line(str(error))}): a Ray node"
                " must run on this machine (scripts/ray_cluster.sh join)"
            ) from None
        logger.info("using the Ray cluster at %s", origin)


def _check_address(address: str, failure: str, advice: str) -> None:
    """Check the form of `RAY_ADDRESS`, and that something listens there; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"RAY_ADDRESS={address} is not an address (HOST:PORT): set it to one, or unset it")
    if not _listens(f"{host}:{port}"):
        raise ServiceDown(f"{failure}, because nothing answers at RAY_ADDRESS={address}: {advice}")


def require_private(*, allow_open: bool) -> bool:
    """Raise if the cluster in use is not private, that is, does not refuse calls without its token.

    If there is no cluster, the check is for the one that `serve run` would start, which is private unless
    `RAY_AUTH_MODE` says otherwise. `RAY_TMPDIR` is then set, so that this cluster keeps its files in `private_folder`.

    Args:
        allow_open: Do not raise for an open cluster (the setting `allow_open_cluster`).

    Returns:
        Whether the cluster is private.

    Raises:
        UserError: anybody can join the cluster, and that is not allowed.
        InfrastructureError: the cluster does not answer.
    """
    address = running_cluster()
    if address is None:
        os.environ["RAY_TMPDIR"] = str(private_folder())
        private = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"
        if private:
            keep_token_private(create=True)
    else:
        private = asks_for_token(address)
    if not private and not allow_open:
        raise UserError(
            f"the Ray cluster {address or '(with this RAY_AUTH_MODE)'} asks nobody for a token, so that whoever reaches"
            f" it can run code as you: stop it and start one with `{START_COMMAND}`, or set allow_open_cluster=true,"
            " which every result then records"
        )
    return private
