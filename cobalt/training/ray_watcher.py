"""The watcher of a private Ray: when the process that started it has ended, it ends what is left, and removes a folder.

    python -I -S ray_watcher.py FOLDER < PIPE

The watcher waits for the end of a pipe whose other end only the watched process holds. Then it ends every process that
has FOLDER in the variable `VARIABLE` of its environment, or a file in FOLDER open for writing, as Ray's processes have
their logs: first by SIGTERM, then by SIGKILL. It uses the standard library only, so that it starts in milliseconds.
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

VARIABLE = "COBALT_PRIVATE_RAY"


def watch(folder: Path) -> None:
    """Wait for the end of standard input, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are meant for the watched process
    while os.read(0, 1024):
        pass
    _end_all(folder, signal.SIGTERM, 5.0)
    _end_all(folder, signal.SIGKILL, 20.0)
    deadline = time.monotonic() + 5.0
    while folder.exists() and time.monotonic() < deadline:  # the watched process may still log into it
        shutil.rmtree(folder, ignore_errors=True)
        select.select([], [], [], 0.05)


def _end_all(folder: Path, number: signal.Signals, seconds: float) -> None:
    """Signal all processes to end, and those that they start meanwhile, until none is left or the time is up."""
    deadline = time.monotonic() + seconds
    asked: set[int] = set()
    while time.monotonic() < deadline and (alive := _open_all(folder)):
        for pid, descriptor in alive.items():
            if pid not in asked or number is signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
                asked.add(pid)
        # The descriptor of a process becomes readable when the process has ended.
        select.select(list(alive.values()), [], [], max(0.0, deadline - time.monotonic()))
        for descriptor in alive.values():
            os.close(descriptor)


def _open_all(folder: Path) -> dict[int, int]:
    """Descriptors of the processes to end, by process id; an id alone could soon belong to another process."""
    alive: dict[int, int] = {}
    # The watched process, if it lives, writes into the folder itself, as Ray's driver.
    for entry in set(Path("/proc").glob("[0-9]*")) - {Path(f"/proc/{pid}") for pid in (os.getpid(), os.getppid())}:
        with contextlib.suppress(OSError):  # it has ended
            descriptor = os.pidfd_open(int(entry.name))
            if _belongs(entry, folder):
                alive[int(entry.name)] = descriptor
            else:
                os.close(descriptor)
    return alive


def _belongs(entry: Path, folder: Path) -> bool:
    try:
        if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False  # ended, and not yet collected by its parent
        if f"{VARIABLE}={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
        # Ray's workers and agents overwrite the environment that they were started with by their titles.
        return any(_writes_into(descriptor, folder) for descriptor in (entry / "fd").iterdir())
    except OSError:  # the process has ended, or is another user's
        return False


def _writes_into(descriptor: Path, folder: Path) -> bool:
    try:
        return bool(descriptor.lstat().st_mode & stat.S_IWUSR) and descriptor.readlink().is_relative_to(folder)
    except OSError:  # closed meanwhile
        return False


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
