"""Files that are complete or as they were before: written under another name, synced, and then renamed; and locks."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cobalt.stage.errors import UserError, system_errors


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the block ends. If the block raises, `path` is as it was.

    The folder is made. Another process that writes the same file is refused.

    Raises:
        UserError: the file cannot be written, on a full disk for one, or another process writes it.
    """
    part = path.with_name(path.name + ".part")
    with system_errors(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as handle:
            lock(handle, part)
            try:
                handle.truncate(0)  # what a kill has left
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise


def replace_text(path: Path, text: str) -> None:
    """Write a file whole; see `replacing`."""
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def locked_folder(folder: Path, file: str) -> Iterator[None]:
    """Keep other processes that ask for the same from writing into a folder, which is made.

    `file` in it is locked, as some network file systems lock no folder.

    Raises:
        UserError: another process has the folder, or it cannot be made.
    """
    path = folder / file
    with system_errors(f"cannot write into {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("ab")
    with handle:
        lock(handle, path)
        yield


def lock(handle: IO[bytes], path: Path) -> None:
    """Take the lock of an open file, until it is closed.

    Raises:
        UserError: another process has it.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            raise BlockingIOError  # another process replaced the file in this very moment, or removed it
    except (BlockingIOError, FileNotFoundError):
        raise UserError(f"{path} is being written by another process: wait for it or stop it") from None
