"""Rows of a file, one JSON object each, whatever the form of the file. Rows are not interpreted here.

| file | form |
|---|---|
| `*.jsonl`, and every other name | one object a line; or one array of objects, if the file begins with `[` |
| `*.gz` | either of these, compressed by gzip |
| `*.parquet` | the rows of the table; dates and times become ISO strings, other values that JSON lacks text |

Lines and Parquet rows are read a few at a time. An array is read whole.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from datetime import date, time
from pathlib import Path
from typing import IO, Any, Protocol, cast

from cobalt.errors import UserError

MOST_LEVELS = 100
"""Depth of arrays and objects in a body or a suite; far below that at which Python's own functions fail."""

_BATCH_ROWS = 16
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_PIECE = 1 << 20  # bytes of a file that are hashed at a time


class Digest(Protocol):
    """An object that takes the bytes of a file, such as `hashlib.sha256()`."""

    def update(self, data: bytes, /) -> None:
        """Add more bytes."""


def read_rows(
    path: Path, *, ignore_last_bytes: int = 0, digest: Digest | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `(place, row)` for every row of a file; the place is for messages, such as "line 3".

    Args:
        path: The file.
        ignore_last_bytes: Number of bytes at the end of a file of lines to ignore.
        digest: Updated with the bytes of the file.

    Raises:
        UserError: the file cannot be read, or a row is not a JSON object; the message names the row.
    """
    if path.suffix == ".parquet":
        _hash(path, digest)
        yield from _parquet_rows(path)
        return
    if path.suffix == ".gz":
        _hash(path, digest)
        digest = None
    try:
        with _opened(path) as handle:
            remaining = None if path.suffix == ".gz" else path.stat().st_size - ignore_last_bytes
            if _begins_an_array(handle):
                yield from _items(path, handle, digest)
            else:
                yield from _lines(path, handle, remaining, digest)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot decompress {path}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


class TooManyValues(UserError):
    """A JSON text has more values than its reader accepts."""


class JsonMeasure:
    """Counts the values and the depth of a JSON text that arrives in pieces, before anything is decoded.

    Decoded, a value takes up to 64 bytes of memory, and `[],` has one in three bytes: a text without a limit on its
    values takes 25 times its size. What quoted strings hold is not counted, so that long strings are never refused.

    Args:
        most_values: Largest number of values.
        most_levels: Largest depth of nested arrays and objects.
    """

    def __init__(self, most_values: int, most_levels: int) -> None:
        self._most_values, self._most_levels = most_values, most_levels
        self._values, self._levels, self._quotes = 1, 0, 0
        self._escape = b""  # a backslash whose character has not arrived

    def add(self, piece: bytes) -> None:
        """Count the next piece of the text, of any size.

        Raises:
            TooManyValues: the text has more than `most_values` values.
            UserError: it has more than `most_levels` levels, or closes more than it opens.
        """
        for start in range(0, len(piece), _PIECE):
            self._add(piece[start : start + _PIECE])

    def _add(self, piece: bytes) -> None:
        text = self._escape + piece
        escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
        self._escape = text[len(text) - escaped :]
        text = text[: len(text) - escaped].replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = text.count(b'"')
        if self._quotes + quotes > 4 * self._most_values + 2:  # each value has a string, and as a member a name
            raise TooManyValues(f"more than {self._most_values} values")
        outside = b"".join(text.split(b'"')[self._quotes % 2 :: 2])
        self._quotes += quotes
        for bracket in outside.translate(None, _NOT_BRACKETS):
            self._levels += 1 if bracket in b"[{" else -1
            if self._levels > self._most_levels:
                raise UserError(f"nested too deeply (more than {self._most_levels} levels)")
            if self._levels < 0:
                raise UserError("not valid JSON (it closes more than it opens)")
        self._values += outside.count(b"[") + outside.count(b"{") + outside.count(b",")
        if self._values > self._most_values:
            raise TooManyValues(f"more than {self._most_values} values")


def decode_json(text: str | bytes, *, most_values: int | None = None) -> Any:
    """Decode one JSON value from an untrusted source.

    Args:
        text: The JSON text.
        most_values: Refuse a text of more values before it is decoded; None: any number.

    Raises:
        UserError: the text is not JSON or not UTF-8, is nested too deeply, has a number too long to read, or holds half
            of a surrogate pair, which is not a character and which models, pipes and files do not accept.
        TooManyValues: it has more than `most_values` values.
    """
    if most_values is not None:
        measure = JsonMeasure(most_values, MOST_LEVELS)
        measure.add(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        # By itself, `json` would also read bytes as UTF-16 or UTF-32, and accept halves of surrogate pairs.
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UserError(f"not valid JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text") from None
    except UnicodeEncodeError:
        raise UserError("not Unicode text (it holds half of a surrogate pair, such as \\ud800)") from None
    except RecursionError:
        raise UserError("not valid JSON (nested too deeply)") from None
    except ValueError as error:
        raise UserError(f"not valid JSON ({error})") from None
    return value


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _begins_an_array(handle: IO[bytes]) -> bool:
    start = handle.read(64)
    handle.seek(0)
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _lines(
    path: Path, handle: IO[bytes], remaining: int | None, digest: Digest | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(handle, 1):
        if remaining is not None:
            remaining -= len(line)
            if remaining < 0:
                return
        if digest is not None:
            digest.update(line)
        if not line.strip():
            continue
        try:
            value = decode_json(line)
        except UserError as error:
            cut = "" if line.endswith(b"\n") else "; the file seems to be cut off there: get or make it whole"
            raise UserError(f"{path}, line {number}: {error}{cut}") from None
        yield f"line {number}", _object(path, f"line {number}", value)


def _items(path: Path, handle: IO[bytes], digest: Digest | None) -> Iterator[tuple[str, dict[str, Any]]]:
    content = handle.read()
    if digest is not None:
        digest.update(content)
    try:
        values = decode_json(content)
    except UserError as error:
        raise UserError(
            f"{path}: {error}; it begins with '[', and so it is read as one array of objects: give an array, or one"
            " object a line"
        ) from None
    for number, value in enumerate(values, 1):
        yield f"item {number}", _object(path, f"item {number}", value)


def _object(path: Path, place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}, {place}: not a JSON object")
    return value


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: Parquet files need pyarrow (scripts/setup.sh --profile cpu installs it)") from None
    try:
        # With a buffer, pages are read as they are needed instead of whole row groups.
        with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", {name: _plain(value) for name, value in row.items()}
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise UserError(f"cannot read {path}: {reason}") from None
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} is not a whole Parquet file ({str(error).splitlines()[0]})") from None


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: dates and times as ISO strings, and others without a form of their own as text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _hash(path: Path, digest: Digest | None) -> None:
    if digest is None:
        return
    try:
        with path.open("rb") as handle:
            while piece := handle.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
