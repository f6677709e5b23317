"""Files that are complete or as they were before: written under another name, synced, and then renamed.

It writes one file. Two results that must appear together are the caller's to order.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cobalt.stage.errors import UserError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` when the block ends. If the block raises, `path` is as it was.

    The folder is made. Another process that writes the same file is refused.

    Raises:
        UserError: the file cannot be written, on a full disk for one, or another process writes it.
    """
    part = path.with_name(path.name + ".part")
    try:
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
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same from writing into a folder, which is made; it holds no lock file.

    Raises:
        UserError: another process has the folder, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder} is being written by another process: wait for it or stop it") from None
        yield
    finally:
        os.close(descriptor)


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
