"""Append-only JSONL result files that survive being killed and can be resumed.

Each record is written whole and synced before it counts as done. A last line without its newline comes from a process
that was killed during a write: the line is cut off and its record is made again. Every other malformed line, and an id
that occurs twice, is an error, because dropping it silently would change the numbers. An advisory lock lets only one
process write a file at a time. Of a record's fields, this module reads `id` alone.
"""

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from cobalt.stage.atomic import lock, replacing
from cobalt.stage.errors import UserError, system_errors
from cobalt.stage.files import check_result_path
from cobalt.stage.rows import LARGEST_ROW, encode_json, read_rows

RecordId = str | int
T = TypeVar("T")


_adapter = functools.cache(TypeAdapter)  # to make one takes milliseconds


def checked(kind: type[T], value: object) -> T:
    """A decoded value, if it is as a type describes it: a dataclass, a `TypedDict` or a model of pydantic.

    Raises:
        UserError: it is not; the message names the first field that is wrong, as "field.index.field".
    """
    try:
        described: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]  # types are hashable
        return described.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].replace("valid tuple", "valid list")  # JSON has lists alone
        raise UserError(f"field {where!r}: {message[:1].lower()}{message[1:]}") from None


def read_records(path: Path, *, unfinished: bool = False) -> list[dict[str, Any]]:
    """Read the records of a file, in file order; `unfinished` leaves out a last line that has no newline.

    Raises:
        UserError: the file cannot be read, a line is malformed, a record has no `id`, or an id occurs twice.
    """
    return list(iterate_records(path, unfinished=unfinished))


def iterate_records(path: Path, *, unfinished: bool = False) -> Iterator[dict[str, Any]]:
    """As `read_records`, but one record at a time, for files that do not fit into memory."""
    first_seen: dict[RecordId, str] = {}
    for position, record in read_rows(path, unfinished=unfinished):
        identifier = record.get("id")
        if not isinstance(identifier, str | int):
            raise UserError(f"{path}, {position}: field 'id' is missing or neither a string nor an integer")
        if identifier in first_seen:
            raise UserError(
                f"{path}, {position}: id {identifier!r} is already used on {first_seen[identifier]}:"
                " remove one of the two"
            )
        first_seen[identifier] = position
        yield record


class RecordFile:
    """A result file open for appending; use it as a context manager.

    Attributes:
        path: The file.
        ids: Ids of its records, in their order.
        done: Ids that the file already held when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open or create `path`, and read which ids are done.

        A torn last line is cut off when the first record is written, so that a file of another command that was named
        by mistake stays unchanged. A file that is empty when it is closed is removed.

        Raises:
            UserError: the file cannot be written, another process writes it, or it is not a result file.
        """
        self.path = path
        self._appending = threading.Lock()
        with system_errors(f"cannot write {path}"):
            check_result_path(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: after a failed write, a buffer would be written later, after a torn line.
            self._handle = path.open("ab", buffering=0)
        try:
            lock(self._handle, path)
            self.ids: list[RecordId] = [record["id"] for record in iterate_records(path, unfinished=True)]
            self.done = frozenset(self.ids)
            self._torn = _torn_bytes(path)
        except BaseException:
            self._handle.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and return when it is on the disk; any thread may call this method.

        Raises:
            UserError: the record cannot be written, for example on a full disk; the file then ends as before.
        """
        line = encode_record(record)
        with self._appending:
            size = os.fstat(self._handle.fileno()).st_size - self._torn
            try:
                if self._torn:
                    self._handle.truncate(size)
                    self._torn = 0
                with memoryview(line) as view:
                    written = 0
                    while written < len(line):
                        written += self._handle.write(view[written:]) or 0
                os.fsync(self._handle.fileno())
                self.ids.append(record["id"])
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._handle.truncate(size)
                raise UserError(f"cannot write {self.path}: {error.strerror}") from None

    def sort(self, order: Sequence[RecordId]) -> None:
        """Rewrite the file in the order of its input, so that the same command leaves the same file; ends the writing.

        Records whose ids are not in `order` go to the end, in the order that they have; a torn last line is left out.

        Raises:
            UserError: the sorted file cannot be written, for example on a full disk; the file is then unchanged.
        """
        position = {identifier: index for index, identifier in enumerate(order)}
        positions = [position.get(identifier, len(position)) for identifier in self.ids]
        if positions == sorted(positions) and not self._torn:
            return
        with self.path.open("rb") as lines:
            begins, begin = [], 0
            for line in lines:
                if line.strip() and line.endswith(b"\n"):  # not torn
                    begins.append(begin)
                begin += len(line)
            with replacing(self.path) as handle:
                for _, begin in sorted(zip(positions, begins, strict=True)):
                    lines.seek(begin)
                    handle.write(lines.readline())
        self.ids.sort(key=lambda identifier: position.get(identifier, len(position)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._appending:  # a thread may still write
            if os.fstat(self._handle.fileno()).st_size == 0:
                self.path.unlink(missing_ok=True)
            self._handle.close()


async def append_whole(output: RecordFile, record: Mapping[str, Any]) -> None:
    """Write a record, to the end even if the caller is cancelled meanwhile: what is finished is never lost."""
    writing = asyncio.create_task(asyncio.to_thread(output.append, record))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        with contextlib.suppress(UserError):  # it would hide what ended the run
            await writing
        raise


def encode_record(record: Mapping[str, Any]) -> bytes:
    """The line of a record; raises UserError if the line has more bytes than are read."""
    text = encode_json(record, ensure_ascii=False) + "\n"
    # A model's byte-level tokens can yield lone surrogates, which have no UTF-8 form.
    line = text.encode("utf-8", errors="replace")
    if len(line) > LARGEST_ROW:
        raise UserError(
            f"the record of id {record.get('id')!r} has more than {LARGEST_ROW >> 20} MiB, and could not be read again"
        )
    return line


def _torn_bytes(path: Path) -> int:
    """Number of bytes after the last newline of a file."""
    torn = b""
    with path.open("rb") as lines:
        for line in lines:
            torn = b"" if line.endswith(b"\n") else line
    return len(torn)
