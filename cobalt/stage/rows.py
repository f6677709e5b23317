"""Rows of a file, one JSON object each, whatever the form of the file. Rows are not interpreted here.

| file | form |
|---|---|
| `*.jsonl`, and every other name | one object a line; or one array of objects, if the file begins with `[` |
| `*.gz` | either of these, compressed by gzip |
| `*.parquet` | the rows of the table; dates and times become ISO strings, other values that JSON lacks text |

Lines and Parquet rows are read a few at a time. An array is read whole. NaN, which some writers put where a value is
missing, is null in a row and in the objects inside it. Numbers of up to `LONGEST_NUMBER` digits are read and written,
whatever Python's own limit for the process is (`sys.set_int_max_str_digits`).

Files may come from anybody, and a compressed one can be of any size in memory. So a row, or an array, has a largest
size, and a file may not unpack to far more than files of text do.
"""

import decimal
import gzip
import importlib.util
import json
import math
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol, cast

from cobalt.stage.errors import UserError
from cobalt.stage.json_measure import MOST_LEVELS, MOST_VALUES, JsonMeasure
from cobalt.stage.parquet_rows import plain

LARGEST_ROW = 1 << 29
"""Bytes of a row's JSON, unpacked, and of an array. TACO's largest rows have tens of MB, and those of LiveCodeBench,
whose tests are in them, somewhat over 100 MB. Decoding can take twenty times as much memory."""
MOST_EXPANSION = 200
"""How many times its own size a file may unpack to, where that is more than `LARGEST_ROW`. Problems and trajectories
shrink to a tenth, and a file made to exhaust memory to a thousandth."""

_PARQUET_ROWS = Path(__file__).with_name("parquet_rows.py")

LONGEST_NUMBER = 50_000
"""Most digits of an integer. Reading takes quadratic time, so that a body of many longer ones would hold a replica."""

# `int` and `str` accept this many digits under every limit that can be set.
_SHORT_DIGITS = sys.int_info.str_digits_check_threshold
_SHORT_BITS = 2000

_WIDE_TEXTS = (b"\xff\xfe", b"\xfe\xff", b"\0", b"{\0", b"[\0")
# How files begin that are not lines of JSON, and what to do with them.
_OTHER_FORMS = (
    (b"\x1f\x8b", "it is compressed by gzip: give it a name that ends in .gz"),
    (b"PAR1", "it is a Parquet file: give it a name that ends in .parquet"),
    (b"PK\x03\x04", "it is a ZIP archive: extract it, and give the file that was in it"),
    (b"\x28\xb5\x2f\xfd", "it is compressed by zstd: decompress it first"),
    (b"\xfd7zXZ", "it is compressed by xz: decompress it first"),
    (b"BZh", "it is compressed by bzip2: decompress it first"),
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the data: fetch the data by 'git lfs pull'"),
    *((start, "it is UTF-16 or UTF-32 text: save it as UTF-8") for start in _WIDE_TEXTS),
    (b"<", "it is HTML or XML, such as a page that a browser saved: download the file itself"),
)
_LINES_OR_ARRAY = "give one JSON object a line, or one array of objects"


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
        with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as handle:
            remaining = None if path.suffix == ".gz" else path.stat().st_size - ignore_last_bytes
            start = handle.read(64)
            handle.seek(0)
            for beginning, advice in _OTHER_FORMS:
                if start.startswith(beginning):
                    raise UserError(f"{path} is not JSON: {advice}")
            if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                yield from _items(path, handle, digest)
            else:
                yield from _lines(path, _bounded_lines(path, handle), remaining, digest)
    except gzip.BadGzipFile as error:
        raise UserError(f"cannot decompress {path}: {error}: only files compressed by gzip may end in .gz") from None
    except (EOFError, zlib.error) as error:
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
        if "\\ud" in text or "\\uD" in text:
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


def parse_json(text: str) -> Any:
    """`json.loads`, also for integers that are longer than Python's limit.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has an integer of more than `LONGEST_NUMBER` digits.
    """
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:  # an integer over the limit
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
        names = (json.dumps({key: 0}, ensure_ascii=ensure_ascii)[1:-4] for key in value)
        items = (_json_text(item, ensure_ascii) for item in value.values())
        return "{" + ", ".join(f"{name}: {item}" for name, item in zip(names, items, strict=True)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_json_text(item, ensure_ascii) for item in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return _long_digits(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else f"{value:+}".replace("inf", "1e999").removeprefix("+")
    return json.dumps(value, ensure_ascii=ensure_ascii)


def _long_integer(digits: str) -> int:
    if len(digits) <= _SHORT_DIGITS:
        return int(digits)
    if digits[0] == "-":
        return -_long_integer(digits[1:])
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(digits)} digits, more than {LONGEST_NUMBER}")
    half = len(digits) // 2
    shift: int = 10**half
    return _long_integer(digits[:-half]) * shift + _long_integer(digits[-half:])


def _long_digits(number: int) -> str:
    if number.bit_length() > LONGEST_NUMBER * math.log2(10):
        raise ValueError(f"a number has more than {LONGEST_NUMBER} digits")
    exact = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
    with decimal.localcontext(exact):
        return ("-" if number < 0 else "") + str(_as_decimal(abs(number), number.bit_length()))


def _as_decimal(number: int, bits: int) -> decimal.Decimal:
    """The number, which has that many bits at most, by halves: `Decimal(number)` takes quadratic time."""
    if bits <= _SHORT_BITS:
        return decimal.Decimal(number)
    half = bits // 2
    high = _as_decimal(number >> half, bits - half)
    return high * _power_of_two(half) + _as_decimal(number & ((1 << half) - 1), half)


def _power_of_two(exponent: int) -> decimal.Decimal:
    if exponent <= _SHORT_BITS:
        return decimal.Decimal(1 << exponent)
    return _power_of_two(exponent // 2) * _power_of_two(exponent - exponent // 2)


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
            value = decode_json(line, most_values=None)
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}{_advice(line, number)}") from None
        row = _object(path, f"line {number}", value)
        yield f"line {number}", without_nan(row) if b"NaN" in line else row


def _advice(line: bytes, number: int) -> str:
    """What to do about a line that is not JSON."""
    try:
        line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return ": save the file as UTF-8"
    if not line.endswith(b"\n"):
        return "; the file seems to be cut off there: get or make it whole"
    # A first line that is not whole is mostly one of an object that is spread over several lines.
    return f": {_LINES_OR_ARRAY}" if number == 1 else ""


def _items(path: Path, handle: IO[bytes], digest: Digest | None) -> Iterator[tuple[str, dict[str, Any]]]:
    content = handle.read(LARGEST_ROW + 1)
    if len(content) > LARGEST_ROW:
        raise UserError(
            f"{path} is an array of more than {LARGEST_ROW >> 20} MiB, which is read whole: give one object a line"
        )
    if digest is not None:
        digest.update(content)
    try:
        values = decode_json(content, most_values=None)
    except UserError as error:
        raise UserError(
            f"{path}: {error}; it begins with '[', and so it is read as one array of objects: {_LINES_OR_ARRAY}"
        ) from None
    holds_nan = b"NaN" in content
    for number, value in enumerate(values, 1):
        row = _object(path, f"item {number}", value)
        yield f"item {number}", without_nan(row) if holds_nan else row


def _object(path: Path, place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{path}, {place}: not a JSON object: {_LINES_OR_ARRAY}")
    return value


def without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which NaN as the value of a field, also of an object in it, is None: a missing value."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else _inner_without_nan(value)
        for name, value in row.items()
    }


def _inner_without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return without_nan(value)
    # NaN as an item of a list stays: it may be the argument of a test.
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [_inner_without_nan(item) for item in value]
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
                yield f"row {number}", without_nan(row)
            reader.wait()
        finally:
            reader.kill()
    raise UserError(f"{path} is not a whole Parquet file (reading it ended with status {reader.returncode})")


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table as JSON can hold it; NaN as the value of a field is None."""
    return without_nan({name: plain(value) for name, value in row.items()})


def _hash(path: Path, digest: Digest | None) -> None:
    if digest is None:
        return
    try:
        with path.open("rb") as handle:
            while piece := handle.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
