"""The logs of services that failed, kept after the private Ray's own folder is gone.

They lie in `$XDG_CACHE_HOME/cobalt/logs`, by default `~/.cache/cobalt/logs`, a folder for each failure. The last
`KEPT` are kept.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from cobalt.stage.environment import cache_folder
from cobalt.stage.errors import InfrastructureError

KEPT = 5
"""Number of failures whose logs are kept."""

_LARGEST = 20 * 2**20  # bytes of a log that are kept, from its beginning, where the first error is


def logs_folder() -> Path:
    """The folder that has one folder for each failure; it may not exist."""
    return cache_folder("logs")


@contextlib.contextmanager
def keeping_logs(ray_folder: Path) -> Iterator[None]:
    """If the block raises an `InfrastructureError`, keep the logs of a Ray, and name their folder in the message.

    Args:
        ray_folder: The folder in which Ray keeps its files.
    """
    try:
        yield
    except InfrastructureError as error:
        kept = _keep(ray_folder)
        if kept is None:
            raise
        raise type(error)(f"{error} (logs: {kept})") from error


def _keep(ray_folder: Path) -> Path | None:
    """Copy the logs of a Ray's sessions; returns their new folder, None if there are none or they cannot be written."""
    sessions = [path for path in ray_folder.glob("session_*/logs") if not path.parent.is_symlink()]
    files = [(path.relative_to(folder), path) for folder in sessions for path in folder.rglob("*") if path.is_file()]
    logs = {name: path for name, path in files if path.stat().st_size}
    if not logs:
        return None
    target = logs_folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)  # not as a parent, which would be open to other users
        for name, path in logs.items():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source:
                copy.write_bytes(source.read(_LARGEST))
    except OSError:
        return None
    for older in sorted(path for path in logs_folder().iterdir() if path.is_dir())[:-KEPT]:
        shutil.rmtree(older, ignore_errors=True)
    return target
