"""The files of a tar archive from anybody, as a stream: nothing is extracted, and no header decides on the memory used.

It reads plain, gzip, bzip2 and xz archives in the formats ustar, GNU and pax. The standard library's reader is not
used: it reads a long name or a pax header whole, whatever its size, skips a member of any size without looking for the
end of the file, and takes a damaged header, or a file that was cut off, for the end of the archive.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from cobalt.stage.errors import UserError

LARGEST_NAME = 1 << 12
"""Bytes of a member's name; Linux opens no longer path."""
LARGEST_PAX_HEADER = 1 << 20
"""Bytes of the extended header before a member: times, names and attributes."""

_BLOCK = 512
_PIECE = 1 << 20  # bytes that are skipped at a time

# Where a header has what is read of it, and the types of members.
_NAME, _SIZE, _CHECKSUM, _TYPE, _MAGIC, _PREFIX = (
    slice(100), slice(124, 136), slice(148, 156), slice(156, 157), slice(257, 263), slice(345, 500)
)  # fmt: skip
_FILES, _NOT_FOLLOWED_BY_DATA = (b"0", b"\0", b"7"), (b"1", b"2", b"3", b"4", b"5", b"6")
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX, _SPARSE = b"L", b"K", (b"x", b"X"), b"g", b"S"

_PAX_RECORD = re.compile(rb"(\d{1,9}) ([^=]+)=")
_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))


class _Damaged(Exception):
    """What is wrong with an archive."""


def tar_files(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size in bytes and content of each regular file of an archive, in its order.

    The caller decides by the size whether it asks for the content, which can be read once and only while its file is
    the current one. Links, folders, devices and pipes are left out.

    Raises:
        UserError: the archive cannot be read, or is damaged or incomplete; the message names it, and the member.
    """
    reached = ""

    def content() -> bytes:
        with _reading(archive, reached):
            return data.read()

    with _reading(archive, ""), _opened(archive) as stream:
        members = _members(stream)
        while True:
            with _reading(archive, reached):
                member = next(members, None)
            if member is None:
                return
            reached, size, data = member
            yield reached, size, content
            with _reading(archive, reached):
                data.skip()


@contextmanager
def _reading(archive: Path, reached: str) -> Iterator[None]:
    """Turn what reading an archive raises into a UserError that names it, and the member that was reached before."""
    try:
        yield
    except (_Damaged, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
        where = f" at or after {reached!r}" if reached else ""
        raise UserError(f"{archive} is an incomplete or damaged tar archive{where} ({error}): get it again") from None
    except OSError as error:
        raise UserError(f"cannot read {archive}: {error.strerror or error}") from None


def _opened(archive: Path) -> IO[bytes]:
    with archive.open("rb") as handle:
        start = handle.read(6)
    for mark, opener in _OPENERS:
        if start.startswith(mark):
            return cast("IO[bytes]", opener(archive))
    return archive.open("rb", buffering=io.DEFAULT_BUFFER_SIZE * 8)


class _Data:
    """What follows a header: `left` bytes of data, and `padding` up to the next header."""

    def __init__(self, stream: IO[bytes], name: str, size: int) -> None:
        self.stream, self.name, self.left, self.padding = stream, name, size, -size % _BLOCK

    def read(self) -> bytes:
        """All of the data."""
        content = self.stream.read(self.left)
        if len(content) < self.left:
            raise _Damaged(f"it ends within {self.name!r}")
        self.left = 0
        return content

    def skip(self) -> None:
        """Go on to the next header."""
        left = self.left + self.padding
        while left:
            piece = len(self.stream.read(min(left, _PIECE)))
            if not piece:
                raise _Damaged(f"it ends within {self.name!r}")
            left -= piece
        self.left = self.padding = 0


def _members(stream: IO[bytes]) -> Iterator[tuple[str, int, _Data]]:
    """The regular files of an archive; the caller skips the data of each."""
    long_name: str | None = None
    pax: dict[bytes, bytes] = {}
    while any(header := stream.read(_BLOCK)):
        name, size, kind = _header(header)
        if kind in _NOT_FOLLOWED_BY_DATA:
            long_name, pax = None, {}
            continue
        if kind == _LONG_NAME:
            long_name = _text(_small(stream, name, size, LARGEST_NAME, "name").partition(b"\0")[0])
        elif kind in _PAX:
            pax = _pax_records(_small(stream, name, size, LARGEST_PAX_HEADER, "extended header"))
        elif kind in (_LONG_LINK, _GLOBAL_PAX):
            _Data(stream, name, size).skip()
        else:
            name = _text(pax[b"path"]) if b"path" in pax else long_name or name
            if len(name) > LARGEST_NAME:
                raise _Damaged(f"a member's name has {len(name)} characters; the longest has {LARGEST_NAME}")
            if kind == _SPARSE or any(field.startswith(b"GNU.sparse.") for field in pax):
                raise _Damaged(f"{name!r} is a sparse file, which is not read")
            size = _number(pax[b"size"], 10, name) if b"size" in pax else size
            data = _Data(stream, name, size)
            if kind in _FILES:
                yield name, size, data
            else:
                data.skip()
            long_name, pax = None, {}
    if len(header) < _BLOCK:
        raise _Damaged("it has no mark of its end")


def _header(header: bytes) -> tuple[str, int, bytes]:
    """Name, size and type of a member."""
    if len(header) < _BLOCK:
        raise _Damaged("it ends within a header")
    name = header[_NAME].partition(b"\0")[0]
    if header[_MAGIC] == b"ustar\0" and header[_PREFIX.start]:  # GNU's format, "ustar ", has other fields there
        name = header[_PREFIX].partition(b"\0")[0] + b"/" + name
    text = _text(name)
    sums = sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")  # the checksum's own bytes count as spaces
    if _number(header[_CHECKSUM], 8, text) != sums:
        raise _Damaged("a header is damaged")
    kind = header[_TYPE]
    # Before POSIX, a folder was a file whose name ends in a slash.
    return text, _number(header[_SIZE], 8, text), b"5" if kind == b"\0" and name.endswith(b"/") else kind


def _number(field: bytes, base: int, name: str) -> int:
    """A number of a header: in digits, or, for sizes from 8 GiB on, binary after a byte 0x80."""
    if field.startswith(b"\x80"):
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if not re.fullmatch(rb"[0-7]{0,24}" if base == 8 else rb"[0-9]{1,24}", digits):
        raise _Damaged(f"the header of {name!r} has a number that is not one")
    return int(digits or b"0", base)


def _small(stream: IO[bytes], name: str, size: int, largest: int, what: str) -> bytes:
    """The data of a header that belongs to the next member."""
    if size > largest:
        raise _Damaged(f"the {what} in {name!r} has {size} bytes; the largest has {largest}")
    data = _Data(stream, name, size)
    content = data.read()
    data.skip()
    return content


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """The fields of an extended header, each "LENGTH NAME=VALUE" and a newline."""
    records, begin = {}, 0
    while (match := _PAX_RECORD.match(content, begin)) is not None:
        end = begin + int(match[1])
        if end <= match.end() or end > len(content):
            raise _Damaged("an extended header is damaged")
        records[match[2]] = content[match.end() : end - 1]
        begin = end
    return records


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
