"""Functions that the entry points and the clients of Ray Serve apps share.

They build an app for `serve run` and find a running app. Ray is imported inside the functions, so that layers 0 and 1
can be imported without it.
"""

import asyncio
import http.client
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cobalt.serving import cluster
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError, last_line

Application = TypeVar("Application")

_SERVE_PORT = 8000  # where `serve run` listens


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
    except (UserError, InfrastructureError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2 if isinstance(error, UserError) else 1) from None
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

    if not ray.is_initialized():
        if cluster.running_cluster(any_local=True) is None:
            return False
        cluster.join()
    return _get_global_client(raise_if_no_controller_running=False) is not None


async def find_app(name: str, advice: str) -> Any:
    """The handle of a running Serve app; joins the running Ray cluster (`RAY_ADDRESS` or the local one).

    Args:
        name: Name of the Serve app.
        advice: What the user should do if the app is not running, as the end of a sentence.

    Raises:
        ServiceDown: there is no cluster or no such app.
        UserError: `RAY_ADDRESS` is not an address, or this user has not the cluster's token.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return await asyncio.to_thread(_find_app, name, advice)
    finally:
        # Ray's own handler prints stacks and aborts.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _find_app(name: str, advice: str) -> Any:
    cluster.join(f"app {name!r} cannot be reached", advice)
    from ray import serve
    from ray.serve.exceptions import RayServeException

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # which importing Serve sets to INFO
    try:
        return serve.get_app_handle(name)
    except RayServeException:
        address = cluster.running_cluster()
        raise ServiceDown(f"app {name!r} is not running on the Ray cluster at {address}: {advice}") from None


def reason(error: BaseException) -> str:
    """The cause that an error of Ray names, below a remote traceback."""
    return last_line(str(error)) or type(error).__name__
