"""Append-only JSONL result files that survive being killed and can be resumed.

Each record is written whole and synced before it counts as done. A last line without its newline is what a kill
in the middle of a write leaves: it is cut off and its record made again. Every other malformed line, and an id
that occurs twice, is an error, because dropping it in silence would change the numbers. One process writes a file
at a time (an advisory lock sees to it). It knows nothing of what the records mean beyond their `id`.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cobalt.errors import UserError
from cobalt.problem import ProblemId, read_json_lines


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the finished records of a result file, in file order; a torn last line is left out.

    Raises:
        UserError: unreadable file, a malformed line, a record without `id`, or an id that occurs twice.
    """
    return list(iterate_records(path))


def iterate_records(path: Path) -> Iterator[dict[str, Any]]:
    """As `read_records`, one record at a time, for files that are larger than the memory."""
    torn = _torn_bytes(path)
    first_seen: dict[ProblemId, int] = {}
    for number, record in read_json_lines(path, ignore_last_bytes=torn):
        identifier = record.get("id")
        if not isinstance(identifier, str | int):
            raise UserError(f"{path}, line {number}: field 'id' is missing or neither a string nor an integer")
        if identifier in first_seen:
            raise UserError(
                f"{path}, line {number}: id {identifier!r} is already used on line {first_seen[identifier]};"
                " remove one of the two lines"
            )
        first_seen[identifier] = number
        yield record


class RecordFile:
    """A result file open for appending; use it as a context manager.

    Attributes:
        path: The file.
        done: Ids that the file already held when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open or create `path`, cut a torn last line off, and read which ids are done.

        A file that was created here and holds nothing when it is closed is removed.

        Raises:
            UserError: the path names no regular file, the folder cannot be written, another process holds the file,
                or its content is not a valid result file.
        """
        self.path = path
        try:
            check_result_path(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = path.open("ab")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._handle.fileno()).st_nlink == 0:
                    raise BlockingIOError  # its empty file was removed by another process in this very moment
            except BlockingIOError:
                raise UserError(f"{path} is being written by another process: wait for it or stop it") from None
            torn = _torn_bytes(path)
            if torn:
                self._handle.truncate(path.stat().st_size - torn)
            self.done: frozenset[ProblemId] = frozenset(record["id"] for record in iterate_records(path))
        except BaseException:
            self._handle.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and return when it is on the disk."""
        line = json.dumps(record, ensure_ascii=False) + "\n"
        # Lone surrogates can come out of a model's byte-level tokens and have no UTF-8 form.
        self._handle.write(line.encode("utf-8", errors="replace"))
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.fstat(self._handle.fileno()).st_size == 0:
            self.path.unlink(missing_ok=True)
        self._handle.close()


def sort_records(path: Path, order: Sequence[ProblemId]) -> None:
    """Rewrite a finished result file in the order of its input, atomically.

    Records arrive in the order in which they finish, which differs from run to run; sorted, the same command
    leaves the same file. Ids that `order` does not name keep their places at the end.
    """
    position = {identifier: index for index, identifier in enumerate(order)}
    lines = path.read_bytes().splitlines(keepends=True)
    keyed = sorted(lines, key=lambda line: position.get(json.loads(line)["id"], len(position)))
    if keyed != lines:
        temporary = path.with_name(path.name + ".sorting")
        with temporary.open("wb") as handle:
            handle.writelines(keyed)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)


def check_result_path(path: Path) -> None:
    """Refuse a path that names a folder, a device or nothing, before anything is written.

    Raises:
        UserError: it does.
    """
    if not path.name or (path.exists() and not path.is_file()):
        raise UserError(f"'{path}' is no file that a result can be written to: give the result a file name")


def _torn_bytes(path: Path) -> int:
    """Length of what follows the last newline of a file, in bytes."""
    try:
        with path.open("rb") as handle:
            end = handle.seek(0, os.SEEK_END)
            position = end
            while position > 0:
                start = max(0, position - 65536)
                handle.seek(start)
                newline = handle.read(position - start).rfind(b"\n")
                if newline >= 0:
                    return end - (start + newline + 1)
                position = start
            return end
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
