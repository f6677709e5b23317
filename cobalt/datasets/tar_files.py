"""The files of a tar archive from anybody: nothing is extracted, and no header decides on the memory used.

`tarfile` reads a long name or a pax header whole, whatever its size, follows the maps of sparse files without an end,
and takes a damaged header, or a file that was cut off, for the end of the archive; `_Member` refuses these.
"""

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from cobalt.stage.errors import UserError

LARGEST_HEADER = 1 << 14
"""Bytes of a header before a member: its long name, or times, names and attributes. `tarfile` takes a time that grows
with the square of the size."""

T = TypeVar("T")

_HEADERS = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
)  # fmt: skip


class _Member(tarfile.TarInfo):
    """A member whose header is refused if it is damaged, too large, or that of a sparse file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise  # the mark of the archive's end
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """The hook that `tarfile` has for subclasses: what it does with a header."""
        if self.size < 0 or (self.type in _HEADERS and self.size > LARGEST_HEADER):
            raise tarfile.ReadError(f"the header {self.name!r} has {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._proc_gnusparse_10()
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError(f"{self.name!r} is a sparse file, which is not read")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10


def tar_files(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size in bytes and content of each regular file of an archive (plain, gzip, bzip2 or xz), in its order.

    The caller decides by the size whether it asks for the content, which can be read once and only while its file is
    the current one. Links, folders, devices and pipes are left out.

    Raises:
        UserError: the archive cannot be read, or is damaged or incomplete; the message names it, and the member.
    """
    reached = ""
    with _read(archive, reached, partial(tarfile.open, archive, tarinfo=_Member, encoding="utf-8")) as source:
        while (member := _read(archive, reached, source.next)) is not None:
            source.pax_headers = {}  # as the members, it would grow with the archive
            source.members.clear()  # type: ignore[attr-defined]
            reached = f" at or after {member.name[:200]!r}"
            if member.size < 0:  # of an extended header
                raise UserError(f"{archive} is a damaged tar archive{reached} (its size is negative): get it again")
            if member.isreg() and (file := source.extractfile(member)) is not None:
                yield member.name, member.size, partial(_read, archive, reached, file.read)


def _read(archive: Path, reached: str, call: Callable[[], T]) -> T:
    """The result of a call that reads the archive; what it raises is the user's to know."""
    try:
        return call()
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError, RecursionError) as error:
        why: object = str(error).partition(":\n")[0]
    except OSError as error:
        why = error
        if error.errno is not None:  # not of what is packed
            raise UserError(f"cannot read {archive}: {error.strerror}") from None
    raise UserError(f"{archive} is an incomplete or damaged tar archive{reached} ({why}): get it again")
