"""The watcher of a private Ray: when the process that started it has ended, it ends what is left, and removes a folder.

    python -I ray_watcher.py FOLDER < PIPE

It waits for the end of a pipe whose other end only the watched process holds. Then it ends every process that has
FOLDER in the variable `VARIABLE` of its environment, or a file in FOLDER open for writing, as Ray's have their logs.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

VARIABLE = "COBALT_PRIVATE_RAY"


def watch(folder: Path) -> None:
    """Wait for the end of standard input, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these signals are meant for the watched process
    while os.read(0, 1024):
        pass
    for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 20.0)):
        deadline = time.monotonic() + seconds
        asked: set[psutil.Process] = set()
        while time.monotonic() < deadline and (processes := _remaining(folder)):  # they may start others meanwhile
            for process in processes - asked:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            asked |= processes
            select.select([], [], [], 0.1)
    deadline = time.monotonic() + 5.0
    while folder.exists() and time.monotonic() < deadline:  # the watched process may still log into it
        shutil.rmtree(folder, ignore_errors=True)
        select.select([], [], [], 0.05)


def _remaining(folder: Path) -> set[psutil.Process]:
    # The watched process, if it lives, writes into the folder itself, as Ray's driver.
    spared = (os.getpid(), os.getppid())
    return {process for process in psutil.process_iter() if process.pid not in spared and _belongs(process, folder)}


def _belongs(process: psutil.Process, folder: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if process.environ().get(VARIABLE) == str(folder):
            return True
        # Ray's workers and agents overwrite the environment that they were started with by their titles.
        return any(file.mode != "r" and Path(file.path).is_relative_to(folder) for file in process.open_files())
    except psutil.Error:  # it has ended, or is another user's
        return False


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
