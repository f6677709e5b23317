"""Functions that the entry points and the clients of Ray Serve apps share.

They build an app for `serve run` and find a running app. Ray is imported inside the functions, so that layers 0 and 1
can be imported without it.
"""

import asyncio
import http.client
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cobalt import cluster
from cobalt.errors import InfrastructureError, ServiceDown, UserError, last_line

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
            ray.init(address="auto", namespace="serve", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        return False
    return _get_global_client(raise_if_no_controller_running=False) is not None


async def find_app(name: str, advice: str) -> Any:
    """The handle of a running Serve app; joins the running Ray cluster (`RAY_ADDRESS` or the local one).

    Args:
        name: Name of the Serve app.
        advice: What the user should do if the app is not running, as the end of a sentence.

    Raises:
        ServiceDown: there is no cluster or no such app.
    """
    return await asyncio.to_thread(_find_app, name, advice)


def _find_app(name: str, advice: str) -> Any:
    from ray import serve
    from ray.serve.exceptions import RayServeException

    join_cluster(f"app {name!r} cannot be reached", advice)
    try:
        return serve.get_app_handle(name)
    except RayServeException:
        raise ServiceDown(f"app {name!r} is not running: {advice}") from None


def join_cluster(failure: str, advice: str) -> None:
    """Join the running Ray cluster (`RAY_ADDRESS` or the local one) if this process has not joined one.

    The user's token is sent to a cluster that asks for one, even without `RAY_AUTH_MODE=token`.

    Args:
        failure: What is not possible without the cluster, as the beginning of a sentence.
        advice: What the user should do if there is no cluster, as the end of a sentence.

    Raises:
        ServiceDown: there is no cluster, or it refuses to be joined.
    """
    import ray
    from ray.exceptions import AuthenticationError

    with _joining:
        if ray.is_initialized():
            return
        _check_address(failure, advice)
        try:
            address = cluster.running_cluster(any_local=True)
            if address is not None:
                cluster.bring_token(address)
            ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, AuthenticationError, InfrastructureError):
            address = os.environ.get("RAY_ADDRESS")
            if not address:
                raise ServiceDown(f"{failure}, because Ray is not running: {advice}") from None
            raise ServiceDown(
                f"{failure}, because the server at RAY_ADDRESS={address} refuses to be joined:"
                " if it is a Ray cluster of another machine, copy its ~/.ray/auth_token here (mode 600)"
            ) from None
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        logger.info("using the Ray cluster at %s", ray.get_runtime_context().gcs_address)


def _check_address(failure: str, advice: str) -> None:
    """Fail at once if nothing listens at `RAY_ADDRESS`; Ray itself would try for minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        raise ServiceDown(f"{failure}, because nothing answers at RAY_ADDRESS={address}: {advice}") from None


def reason(error: BaseException) -> str:
    """The cause that an error of Ray names, below a remote traceback."""
    return last_line(str(error)) or type(error).__name__
