"""Rows of a file, one JSON object each, whatever the form of the file. Rows are not interpreted here.

A file has one object a line, or one array of objects, if it begins with `[`; either may be compressed by gzip. Or it is
Parquet: the rows of the table, in which dates and times become ISO strings, and other values that JSON lacks text. The
first bytes of a file tell its form, whatever its name.

Lines and Parquet rows are read a few at a time, an array whole. NaN as the value of a field, also of an object in the
row, is null: some writers put it where a value is missing. Integers of up to `LONGEST_NUMBER` digits are read and
written, whatever Python's own limit for the process is (`sys.set_int_max_str_digits`).
"""

import gzip
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from io import BufferedReader
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError

LARGEST_ROW = 1 << 29
"""Bytes of a row's JSON, unpacked, and of an array. LiveCodeBench's largest rows, which hold tests, have somewhat over
100 MB."""
MOST_EXPANSION = 200
"""Multiple of its own size that a file may unpack to, where that is more than `LARGEST_ROW`. Problems and trajectories
shrink to a tenth, and a file made to exhaust memory to a thousandth."""
LONGEST_NUMBER = 50_000
"""Most digits of an integer. Reading takes quadratic time, so that a body of many longer ones would hold a replica."""

MOST_LEVELS = 100
"""Depth of arrays and objects in a body or a suite; far below that at which Python's own functions fail."""
MOST_VALUES = 4_000_000
"""Most values of a JSON text that is not a line of a file, such as a field of one."""

_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_COPIED = 1 << 20  # bytes that are looked at, at a time
_TOO_LARGE = 10**LONGEST_NUMBER
_PIECE = sys.int_info.str_digits_check_threshold  # digits that `int` accepts under every limit
_OTHER_FORMS = (
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the data: fetch the data by 'git lfs pull'"),
    (b"<", "it is HTML or XML, such as a page that a browser saved: download the file itself"),
)
_SURROGATE = re.compile(r"\\u[dD]")  # half of a pair, or of one that is whole
_LINES_OR_ARRAY = "give one JSON object a line, or one array of objects"


def read_rows(path: Path, *, unfinished: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `(place, row)` for every row of a file; the place is for messages, such as "line 3".

    `unfinished` leaves out a last line without its newline, which a writer that was killed has left, and refuses an
    array, to which no record can be added.

    Raises:
        UserError: the file cannot be read, is damaged or unpacks to too much, or a row is not a JSON object or too
            large; the message names the file and, for a row, its place.
    """
    try:
        with path.open("rb") as file:
            is_table = file.peek(4).startswith(b"PAR1")
            for position, value in _parquet_rows(path, file) if is_table else _json_values(path, file, unfinished):
                if not isinstance(value, dict):
                    raise UserError(f"{path}, {position}: not a JSON object: {_LINES_OR_ARRAY}")
                yield position, value
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"cannot decompress {path}: {error}: get the file whole") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def decode_json(text: str | bytes, *, most_values: int | None = MOST_VALUES) -> Any:
    """Decode one JSON value from an untrusted source.

    Args:
        text: The JSON text.
        most_values: Refuse a text of more values before it is decoded, because a text of 16 MiB can take 400 MiB of
            memory; None: any number, where something else bounds it.

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
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        elif not text.isascii():
            text.encode()
        value = parse_json(text)
        if _SURROGATE.search(text):
            encode_json(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UserError(f"not valid JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise UserError("not UTF-8 text") from None
    except UnicodeEncodeError:
        raise UserError("not Unicode text (it holds half of a surrogate pair, such as \\ud800)") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON ({error})") from None
    return value


class TooManyValues(UserError):
    """A JSON text has more values than its reader accepts."""


class JsonMeasure:
    """Counts the values and the depth of a JSON text that arrives in pieces, before anything is decoded.

    Decoded, a value takes up to 64 bytes of memory, and `[],` has one in three bytes. What quoted strings hold is not
    counted, so that long strings are never refused.
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
        for start in range(0, len(piece), _COPIED):
            self._add(piece[start : start + _COPIED])

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


def parse_json(text: str) -> Any:
    """`json.loads`, also for integers that are longer than Python's limit.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has an integer of more than `LONGEST_NUMBER` digits.
    """
    try:
        try:
            return json.loads(text)
        except ValueError:  # perhaps for an integer over the limit
            return json.loads(text, parse_int=_long_integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode_json(value: Any, *, ensure_ascii: bool = True) -> str:
    """`json.dumps`, also for integers that are longer than Python's limit, and always JSON.

    NaN is written as null, and an infinite number as 1e999, which is read as infinite.

    Raises:
        ValueError: the value has an integer of more than `LONGEST_NUMBER` digits.
        TypeError: the value has a type that JSON does not have.
    """
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii, allow_nan=False)
    except ValueError:
        return _json_text(value, ensure_ascii)


def _json_text(value: Any, ensure_ascii: bool) -> str:
    if isinstance(value, Mapping):
        names = [json.dumps({key: 0}, ensure_ascii=ensure_ascii)[1:-4] for key in value]
        items = [_json_text(item, ensure_ascii) for item in value.values()]
        return "{" + ", ".join(map(": ".join, zip(names, items, strict=True))) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_json_text(item, ensure_ascii) for item in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= _TOO_LARGE:  # the conversion of many digits takes long
            raise ValueError(f"a number has more than {LONGEST_NUMBER} digits")
        return f"{Decimal(int(value)):f}"  # exact, and under no limit
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else "1e999" if value > 0 else "-1e999"
    return json.dumps(value, ensure_ascii=ensure_ascii)


def _long_integer(digits: str) -> int:
    if digits.startswith("-"):
        return -_long_integer(digits[1:])
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(digits)} digits, more than {LONGEST_NUMBER}")
    number = 0
    for start in range(0, len(digits), _PIECE):
        piece = digits[start : start + _PIECE]
        number = number * 10 ** len(piece) + int(piece)
    return number


def _json_values(path: Path, file: BufferedReader, unfinished: bool) -> Iterator[tuple[str, Any]]:
    handle = gzip.GzipFile(fileobj=file) if file.peek(2).startswith(b"\x1f\x8b") else file
    start = handle.read(64)
    handle.seek(0)
    for beginning, advice in _OTHER_FORMS:
        if start.startswith(beginning):
            raise UserError(f"{path} is not JSON: {advice}")
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        if unfinished:
            raise UserError(f"{path} is an array, to which no record can be added: give one JSON object a line")
        yield from _items(path, handle.read(LARGEST_ROW + 1))
    else:
        yield from _lines(path, handle, unfinished)


def _check_size(path: Path, position: str, size: int, unpacked: int) -> None:
    """Raise UserError if a row has too many bytes, or the file has unpacked to too many by its end."""
    if size > LARGEST_ROW:
        raise UserError(f"{path}, {position}: it has more than {LARGEST_ROW >> 20} MiB, which no real row has")
    if unpacked > LARGEST_ROW and unpacked > MOST_EXPANSION * path.stat().st_size:
        raise UserError(
            f"{path}, {position}: the file has unpacked to more than {MOST_EXPANSION} times its size: if you trust"
            " it, unpack it and give the file of lines"
        )


def _lines(path: Path, handle: BufferedReader | gzip.GzipFile, unfinished: bool) -> Iterator[tuple[str, Any]]:
    number = 0
    while line := handle.readline(LARGEST_ROW + 1):
        number += 1
        position = f"line {number}"
        _check_size(path, position, len(line), handle.tell())
        whole = line.endswith(b"\n")
        if unfinished and not whole:
            return
        if line.strip():
            try:
                value = decode_json(line, most_values=None)
            except UserError as error:
                advice = f": {_LINES_OR_ARRAY}" if number == 1 else ""  # mostly an object that takes several lines
                if line.startswith(b"{") and not whole:
                    advice = "; the file seems to be cut off there"
                raise UserError(f"{path}, {position}: {error}{advice}") from None
            yield position, plain(value) if b"NaN" in line else value


def _items(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    if len(content) > LARGEST_ROW:
        raise UserError(
            f"{path} is an array of more than {LARGEST_ROW >> 20} MiB, which is read whole: give one object a line"
        )
    try:
        values = decode_json(content, most_values=None)
    except UserError as error:
        raise UserError(
            f"{path}: {error}; it begins with '[', and so it is read as one array of objects: {_LINES_OR_ARRAY}"
        ) from None
    for number, value in enumerate(plain(values) if b"NaN" in content else values, 1):
        yield f"item {number}", value


def _parquet_rows(path: Path, handle: BufferedReader) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError(f"{path}: Parquet files need pyarrow (scripts/setup.sh --profile cpu installs it)") from None
    unpacked = 0
    try:
        # With a buffer, pages are read as they are needed instead of whole row groups.
        with parquet.ParquetFile(handle, buffer_size=1 << 20, pre_buffer=False) as file:
            for number, batch in enumerate(file.iter_batches(batch_size=1, use_threads=False), 1):
                unpacked += batch.nbytes
                _check_size(path, f"row {number}", batch.nbytes, unpacked)
                [row] = batch.to_pylist()
                yield f"row {number}", plain(row)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is not a whole Parquet file ({reason})") from None


def plain(value: Any) -> Any:
    """A value as JSON can hold it. NaN as a field of an object is None; as an item it may be the argument of a test."""
    if isinstance(value, Mapping):
        return {
            str(name): None if isinstance(part, float) and math.isnan(part) else plain(part)
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
