"""Rows of a file, one JSON object each, whatever the form of the file. Rows are not interpreted here.

| file | form |
|---|---|
| `*.jsonl`, and every other name | one object a line; or one array of objects, if the file begins with `[` |
| `*.gz` | either of these, compressed by gzip |
| `*.parquet` | the rows of the table; dates and times become ISO strings, other values that JSON lacks text |

Lines and Parquet rows are read a few at a time. An array is read whole.

Files may come from anybody, and a compressed one can be of any size in memory. So a row, or an array, has a largest
size, and a file may not unpack to far more than files of text do.
"""

import gzip
import importlib.util
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol, cast

from cobalt.errors import UserError

LARGEST_ROW = 1 << 29
"""Bytes of a row's JSON, unpacked, and of an array. TACO's largest rows have tens of MB, and those of LiveCodeBench,
whose tests are in them, somewhat over 100 MB. Decoding can take twenty times as much memory."""
MOST_EXPANSION = 200
"""How many times its own size a file may unpack to, where that is more than `LARGEST_ROW`. Problems and trajectories
shrink to a tenth, and a file made to exhaust memory to a thousandth."""

_PARQUET_ROWS = Path(__file__).with_name("parquet_rows.py")
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
        UserError: the file cannot be read, is damaged or unpacks to too much, or a row is not a JSON object or too
            large; the message names the file and, for a row, its place.
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
                yield from _lines(path, _bounded_lines(path, handle), remaining, digest)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot decompress {path}: {error}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def decode_json(text: str | bytes) -> Any:
    """Decode one JSON value from an untrusted source.

    Raises:
        UserError: the text is not JSON or not UTF-8, is nested too deeply, has a number too long to read, or holds half
            of a surrogate pair, which is not a character and which models, pipes and files do not accept.
    """
    try:
        # By itself, `json` would also read bytes as UTF-16 or UTF-32, and accept halves of surrogate pairs.
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        elif not text.isascii():
            text.encode()
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


def _bounded_lines(path: Path, handle: IO[bytes], unit: str = "line") -> Iterator[bytes]:
    """The lines of a file, or of what it unpacks to.

    Raises:
        UserError: a line is too large, or the file unpacks to too much.
    """
    unpacked, most = 0, max(LARGEST_ROW, MOST_EXPANSION * path.stat().st_size)
    number = 0
    while line := handle.readline(LARGEST_ROW + 1):
        number += 1
        if len(line) > LARGEST_ROW:
            raise UserError(f"{path}, {unit} {number}: it has more than {LARGEST_ROW >> 20} MiB, which no real row has")
        unpacked += len(line)
        if unpacked > most:
            raise UserError(
                f"{path}, {unit} {number}: the file has unpacked to more than {MOST_EXPANSION} times its size, as files"
                " do that are made to exhaust memory; if you trust it, unpack it and give the file of lines"
            )
        yield line


def _lines(
    path: Path, lines: Iterator[bytes], remaining: int | None, digest: Digest | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
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
    content = handle.read(LARGEST_ROW + 1)
    if len(content) > LARGEST_ROW:
        raise UserError(
            f"{path} is an array of more than {LARGEST_ROW >> 20} MiB, which is read whole: give one object a line"
        )
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
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"{path}: Parquet files need pyarrow (scripts/setup.sh --profile cpu installs it)")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    # -P: what lies beside the script is not imported.
    command = [sys.executable, "-P", str(_PARQUET_ROWS), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reader:
        try:
            assert reader.stdout is not None
            for number, line in enumerate(_bounded_lines(path, reader.stdout, "row"), 1):
                if not line.endswith(b"\n"):
                    break  # the process ended within the row
                row = json.loads(line)
                if row is None:
                    return
                if isinstance(row, str):
                    raise UserError(f"{path} is not a whole Parquet file ({row})")
                yield f"row {number}", row
            reader.wait()
        finally:
            reader.kill()
    raise UserError(f"{path} is not a whole Parquet file (reading it ended with status {reader.returncode})")


def _hash(path: Path, digest: Digest | None) -> None:
    if digest is None:
        return
    try:
        with path.open("rb") as handle:
            while piece := handle.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
