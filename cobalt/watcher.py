"""Ends what `cobalt.services` has started, and removes its folder, when that process is gone, however it went.

    python -I -S watcher.py FOLDER < PIPE

A process of its own that waits for the end of a pipe whose other end only the watched process holds. It ends every
process that has FOLDER in the variable `VARIABLE` of its environment, or a file in FOLDER open for writing, as Ray's
processes have their logs: first by SIGTERM, then by SIGKILL. Standard library only, so that it starts in milliseconds.
"""

import contextlib
import os
import select
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

VARIABLE = "COBALT_SERVICES"

_ASKED_SECONDS = 5.0
_KILLED_SECONDS = 20.0
_REMOVED_SECONDS = 5.0


def watch(folder: Path) -> None:
    """Wait for the end of standard input, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the one that is watched
    while os.read(0, 1024):
        pass
    _end_all(folder, signal.SIGTERM, _ASKED_SECONDS)
    _end_all(folder, signal.SIGKILL, _KILLED_SECONDS)
    _remove(folder)


def _end_all(folder: Path, number: signal.Signals, seconds: float) -> None:
    """Send a signal to all of them, to those that they start meanwhile too, until none is left or time is up."""
    deadline = time.monotonic() + seconds
    asked: set[int] = set()
    while time.monotonic() < deadline:
        alive = _open_all(folder)
        if not alive:
            return
        try:
            for pid, descriptor in alive.items():
                if pid not in asked or number is signal.SIGKILL:
                    _send(descriptor, number)
                    asked.add(pid)
            # A descriptor of a process can be read when the process has ended.
            select.select(list(alive.values()), [], [], max(0.0, deadline - time.monotonic()))
        finally:
            for descriptor in alive.values():
                os.close(descriptor)


def _open_all(folder: Path) -> dict[int, int]:
    """Descriptors of the processes to end, by their ids: an id may be another process's a moment later."""
    found: dict[int, int] = {}
    # The watched process, if it lives, writes into the folder itself, as Ray's driver.
    spared = {os.getpid(), os.getppid()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        try:
            descriptor = os.pidfd_open(int(entry.name))
        except OSError:
            continue
        if _belongs(entry, folder):
            found[int(entry.name)] = descriptor
        else:
            os.close(descriptor)
    return found


def _belongs(entry: Path, folder: Path) -> bool:
    try:
        if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False  # ended, and not yet collected by its parent
        if f"{VARIABLE}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
        # Ray's workers and agents write their titles over the environment they were started with.
        return any(_writes_into(descriptor, folder) for descriptor in (entry / "fd").iterdir())
    except OSError:  # gone meanwhile, or another user's
        return False


def _writes_into(descriptor: Path, folder: Path) -> bool:
    try:
        return bool(descriptor.lstat().st_mode & stat.S_IWUSR) and descriptor.readlink().is_relative_to(folder)
    except OSError:  # closed meanwhile
        return False


def _remove(folder: Path) -> None:
    """Remove the folder; again, where the watched process, which may still log, writes into it meanwhile."""
    deadline = time.monotonic() + _REMOVED_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        select.select([], [], [], 0.05)


def _send(descriptor: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(descriptor, number)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
