"""The files of a tar archive from anybody, as a stream: nothing is extracted, and no header decides on the memory used.

It reads plain, gzip, bzip2 and xz archives in the formats ustar, GNU and pax. `tarfile` reads each header, but not the
archive: it reads a long name or a pax header whole, whatever its size, skips a member of any size without looking for
the end of the file, and takes a damaged header, or a file that was cut off, for the end of the archive.
"""

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, cast

from cobalt.stage.errors import UserError

LARGEST_NAME = 1 << 12
"""Bytes of a member's name; Linux opens no longer path."""
LARGEST_PAX_HEADER = 1 << 20
"""Bytes of the extended header before a member: times, names and attributes."""

_PIECE = 1 << 20  # bytes that are skipped at a time
_PAX_RECORD = re.compile(rb"(\d{1,9}) ([^=]+)=")
_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))
_WITHOUT_DATA = (
    tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE
)  # fmt: skip


def tar_files(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size in bytes and content of each regular file of an archive, in its order.

    The caller decides by the size whether it asks for the content, which can be read once and only while its file is
    the current one. Links, folders, devices and pipes are left out.

    Raises:
        UserError: the archive cannot be read, or is damaged or incomplete; the message names it, and the member.
    """
    long_name: bytes | None = None
    pax: dict[bytes, bytes] = {}
    with closing(_Archive(archive)) as source:
        while (member := source.header()) is not None:
            if member.type == tarfile.GNUTYPE_LONGNAME:
                long_name = source.small(LARGEST_NAME).partition(b"\0")[0]
            elif member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                pax = source.pax_records()
            elif member.type not in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
                if member.type not in _WITHOUT_DATA:
                    source.extend(member, long_name, pax)
                    if member.isreg():
                        yield member.name, member.size, source.content
                long_name, pax = None, {}
            source.skip()


class _Archive:
    """The bytes of an archive, read from its begin to its end.

    Attributes:
        reached: Name of the last member whose header was read.
        left: Bytes of its data that have not been read; `padding` bytes follow them.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.reached, self.left, self.padding = path, "", 0, 0
        try:
            with path.open("rb") as handle:
                start = handle.read(6)
            opener = next((opener for mark, opener in _OPENERS if start.startswith(mark)), open)
            self._stream = cast("IO[bytes]", opener(path, "rb"))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from None

    def close(self) -> None:
        self._stream.close()

    def damaged(self, why: object) -> UserError:
        where = f" at or after {self.reached!r}" if self.reached else ""
        return UserError(f"{self.path} is an incomplete or damaged tar archive{where} ({why}): get it again")

    def header(self) -> tarfile.TarInfo | None:
        """The next header; None for the mark of the archive's end."""
        block = self._read(tarfile.BLOCKSIZE)
        if not any(block):
            if len(block) < tarfile.BLOCKSIZE:
                raise self.damaged("it has no mark of its end")
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise self.damaged(error) from None
        self.reached = member.name
        self._expect(0 if member.type in _WITHOUT_DATA else member.size)
        return member

    def extend(self, member: tarfile.TarInfo, long_name: bytes | None, pax: dict[bytes, bytes]) -> None:
        """Give a member the name and the size that headers before its own have."""
        name = pax.get(b"path", long_name)
        member.name = self.reached = member.name if name is None else name.decode("utf-8", "surrogateescape")
        if len(member.name) > LARGEST_NAME:
            self.reached = ""
            raise self.damaged(f"a member's name has {len(member.name)} characters; the longest has {LARGEST_NAME}")
        if member.issparse() or any(field.startswith(b"GNU.sparse.") for field in pax):
            raise self.damaged("it is a sparse file, which is not read")
        size = pax.get(b"size", b"%d" % member.size)
        if not re.fullmatch(rb"[0-9]{1,24}", size):
            raise self.damaged("its size is not a number")
        member.size = int(size)
        self._expect(member.size)

    def content(self) -> bytes:
        """All of the current member's data."""
        content = self._read(self.left)
        self.left -= len(content)
        if self.left:
            raise self.damaged("it ends within this file")
        return content

    def small(self, largest: int) -> bytes:
        """The data of a header that belongs to the next member."""
        if self.left > largest:
            raise self.damaged(f"a header has {self.left} bytes; the largest has {largest}")
        return self.content()

    def pax_records(self) -> dict[bytes, bytes]:
        """The fields of an extended header, each "LENGTH NAME=VALUE" and a newline."""
        records, begin, content = {}, 0, self.small(LARGEST_PAX_HEADER)
        while (match := _PAX_RECORD.match(content, begin)) is not None:
            end = begin + int(match[1])
            if end <= match.end() or end > len(content):
                raise self.damaged("an extended header is damaged")
            records[match[2]] = content[match.end() : end - 1]
            begin = end
        return records

    def skip(self) -> None:
        """Go on to the next header."""
        left = self.left + self.padding
        while left:
            piece = len(self._read(min(left, _PIECE)))
            if not piece:
                raise self.damaged("it ends within this file")
            left -= piece
        self.left = self.padding = 0

    def _expect(self, size: int) -> None:
        if size < 0:
            raise self.damaged("its size is negative")
        self.left, self.padding = size, -size % tarfile.BLOCKSIZE

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
            raise self.damaged(error) from None
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from None
