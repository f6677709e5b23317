"""Functions that the entry points and the clients of Ray Serve apps share.

They build an app for `serve run` and find a running app. Ray is imported inside the functions, so that layers 0 and 1
can be imported without it.
"""

import asyncio
import http.client
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cobalt.serving import cluster
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError, last_line

Application = TypeVar("Application")

logger = logging.getLogger(__name__)

_SERVE_PORT = 8000  # where `serve run` listens

# A process joins a cluster only once, even if many of its tasks need it at the same time.
_joining = threading.Lock()


def build_app(builder: Callable[[Mapping[str, Any]], Application], arguments: Mapping[str, Any]) -> Application:
    """Call an app's builder for `serve run`; errors print one sentence and exit with the same codes as in scripts."""
    import ray

    try:
        address = None if ray.is_initialized() else cluster.running_cluster()
        if address is not None:
            cluster.bring_token(address)
            os.environ["RAY_ADDRESS"] = address  # where `serve run` itself will look
        application = builder(arguments)
        _check_port()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None
    except InfrastructureError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(1) from None
    return application


def _check_port() -> None:
    """Raise if another program uses Serve's port; Serve itself would print pages of tracebacks."""
    connection = http.client.HTTPConnection("127.0.0.1", _SERVE_PORT, timeout=5)
    try:
        connection.request("GET", "/-/healthz")
        if connection.getresponse().read() == b"success":
            return  # Serve is running already, and another app can be added
    except ConnectionRefusedError:
        return
    except (OSError, http.client.HTTPException):
        pass  # another program listens there and does not answer as Serve does
    finally:
        connection.close()
    if not _serve_runs():
        raise UserError(
            f"port {_SERVE_PORT} is in use by another program: stop it, or start Serve on another port first"
            " (serve start --http-port PORT)"
        )


def _serve_runs() -> bool:
    """Whether the cluster that `serve run` will use has a Serve instance, on any port."""
    import ray
    from ray.serve.context import _get_global_client

    try:
        if not ray.is_initialized():
            address = cluster.running_cluster(any_local=True)
            if address is None:
                return False
            ray.init(address=address, namespace="serve", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        return False
    return _get_global_client(raise_if_no_controller_running=False) is not None


async def find_app(name: str, advice: str, needed: Sequence[str] = ()) -> Any:
    """The handle of a running Serve app; joins the running Ray cluster (`RAY_ADDRESS` or the local one).

    Args:
        name: Name of the Serve app.
        advice: What the user should do if the app is not running, as the end of a sentence.
        needed: Other apps that the caller will need; if `name` is not running, those that are not either are named.

    Raises:
        ServiceDown: there is no cluster or no such app.
        UserError: `RAY_ADDRESS` is not an address.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return await asyncio.to_thread(_find_app, name, advice, needed)
    finally:
        # Ray's own handler prints stacks and aborts.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _find_app(name: str, advice: str, needed: Sequence[str]) -> Any:
    join_cluster(f"app {name!r} cannot be reached", advice)
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # which importing Serve sets to INFO
    try:
        return serve.get_app_handle(name)
    except RayServeException:
        pass
    missing = [name]
    try:
        running = serve.status().applications
        missing += [other for other in needed if other not in running]
    except (RayError, RayServeException):  # Serve is not running at all
        missing += needed
    apps = f"apps {' and '.join(map(repr, missing))} are" if len(missing) > 1 else f"app {name!r} is"
    raise ServiceDown(f"{apps} not running on the Ray cluster at {cluster.running_cluster()}: {advice}")


def join_cluster(failure: str, advice: str) -> None:
    """Join the running Ray cluster (`RAY_ADDRESS` or the local one) if this process has not joined one.

    The user's token is sent to a cluster that asks for one, even without `RAY_AUTH_MODE=token`. Each step has a time
    limit.

    Args:
        failure: What is not possible without the cluster, as the beginning of a sentence.
        advice: What the user should do if there is no cluster, as the end of a sentence.

    Raises:
        ServiceDown: there is no cluster, or it refuses to be joined.
        UserError: `RAY_ADDRESS` is not an address.
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
        address = cluster.running_cluster(any_local=True)
        if address is None and not given.startswith("ray://"):
            raise ServiceDown(f"{failure}, because Ray is not running: {advice}")
        place = f"RAY_ADDRESS={given}" if named else str(address)
        try:
            refused = False
            if address is not None:
                cluster.bring_token(address)
                refused = cluster.refuses_token(address)
        except InfrastructureError:
            if not named:
                raise ServiceDown(
                    f"{failure}, because Ray is not running (the cluster that was started here last, at {address}, does"
                    f" not answer): {advice}"
                ) from None
            raise ServiceDown(
                f"{failure}, because what answers at {place} is not a Ray cluster: give the address that the services"
                " printed when they were started, or unset RAY_ADDRESS"
            ) from None
        try:
            if refused:
                raise ConnectionError("it refuses this user's token")
            cluster.connect(address or "auto")
        except (ConnectionError, AuthenticationError) as error:
            raise ServiceDown(
                f"{failure}, because the Ray cluster at {place} cannot be joined ({reason(error)}): if it is another"
                " machine's or another user's, copy its ~/.ray/auth_token here (mode 600), and start a Ray node here"
                " (scripts/ray_cluster.sh join)"
            ) from None
        found = "" if named else " (found on this machine, because RAY_ADDRESS is not set)"
        logger.info("using the Ray cluster at %s%s", ray.get_runtime_context().gcs_address, found)


def _check_address(address: str, failure: str, advice: str) -> None:
    """Check that `RAY_ADDRESS` has the form of an address, and that something listens there; Ray would try for minutes.

    Raises:
        UserError: it is not an address.
        ServiceDown: nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"RAY_ADDRESS={address} is not an address (HOST:PORT): set it to one, or unset it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError:
        raise ServiceDown(f"{failure}, because nothing answers at RAY_ADDRESS={address}: {advice}") from None


def reason(error: BaseException) -> str:
    """The cause that an error of Ray names, below a remote traceback."""
    return last_line(str(error)) or type(error).__name__
