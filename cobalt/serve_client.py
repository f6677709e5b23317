"""What every client of a Ray Serve app needs: find the app, and tell passing failures from final ones.

Ray is imported inside the functions: floors 0 and 1 import without it.
"""

import asyncio
import os
import socket
import threading
from typing import Any

from cobalt.errors import InfrastructureError, ServiceDown

# A process joins a cluster once, however many of its tasks ask at the same time.
_joining = threading.Lock()


async def find_app(name: str, advice: str) -> Any:
    """The handle of a running Serve app; joins the running Ray cluster (`RAY_ADDRESS` or the local one).

    Args:
        name: Name of the Serve app.
        advice: What to do when it is not there, as the end of a sentence.

    Raises:
        ServiceDown: no cluster, or no such app.
    """
    return await asyncio.to_thread(_find_app, name, advice)


def _find_app(name: str, advice: str) -> Any:
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    with _joining:
        if not ray.is_initialized():
            _check_address(name, advice)
            try:
                ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
            except ConnectionError:
                raise ServiceDown(f"app {name!r} cannot be reached, because Ray is not running: {advice}") from None
    try:
        return serve.get_app_handle(name)
    except RayServeException:
        raise ServiceDown(f"app {name!r} is not running: {advice}") from None


def _check_address(name: str, advice: str) -> None:
    """Fail at once where `RAY_ADDRESS` names a place that nobody listens at; Ray itself would try for minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        raise ServiceDown(
            f"app {name!r} cannot be reached, because no Ray answers at RAY_ADDRESS={address}: {advice}"
        ) from None


def is_transient(error: BaseException) -> bool:
    """Whether trying again can help."""
    return isinstance(error, InfrastructureError) and not isinstance(error, ServiceDown)


def last_line(error: BaseException) -> str:
    """The last line of an error's text; Ray puts the cause there, below a remote traceback."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
