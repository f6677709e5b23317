"""Project CodeNet's files, from folders or tar archives: metadata, problem pages and Python sources.

| path in the data set | what it holds |
|---|---|
| `metadata/pNNNNN.csv` | the submissions of a problem, one a row |
| `problem_descriptions/pNNNNN.html` | a problem's page |
| `data/pNNNNN/Python/sNNNNNNNNN.py` | a submission's source |

Archives are read twice as streams, whatever the order of their files, and not extracted. The files may come from
anybody: links, pipes and devices are passed over, and no part is read that is larger than such parts are.
"""

import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from cobalt.stage.errors import UserError

LARGEST_SOURCE = 1 << 20
"""Bytes. Larger files are not read; online judges accept no such submission."""
LARGEST_PART = 1 << 28
"""Bytes of a problem's rows, of its page, and of its sources together, which are in memory at a time."""
LARGEST_DESCRIPTIONS = 1 << 32
"""Bytes of all pages and Python rows, which are in memory; the whole data set has less than 1 GiB."""
LARGEST_HEADER = 1 << 14
"""Bytes of a header before a member of an archive. `tarfile` takes a time that grows with the square of the size."""

File = tuple[str, int, Callable[[], bytes]]
"""The name of a file, its size in bytes, and what reads it, once and while it is the current one."""
Sources = Mapping[str, bytes | None]
"""The sources of a problem by submission; None for a file over `LARGEST_SOURCE`."""

_PROBLEM = r"p[0-9]{1,20}"
_DESCRIPTION = re.compile(rf"(?:^|/)(metadata|problem_descriptions)/({_PROBLEM})\.(?:csv|html)$")
_SOURCE = re.compile(rf"(?:^|/)data/({_PROBLEM})/Python/(s[0-9]{{1,20}})\.\w+$")
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
)  # fmt: skip
_DAMAGE = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError, RecursionError)


def read_descriptions(paths: Collection[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """The metadata (header and Python rows) and the page of each problem of a data set in folders and archives.

    Raises:
        UserError: a path cannot be read, an archive is damaged, a part is too large, or there are no metadata or no
            sources.
    """
    rows: dict[str, str] = {}
    pages: dict[str, str] = {}
    holds_sources, total = False, 0
    for path in paths:
        for name, size, read in _files(path):
            match = _DESCRIPTION.search(name)
            if match is None:
                holds_sources = holds_sources or _SOURCE.search(name) is not None
                continue
            if size > LARGEST_PART:
                raise UserError(f"{path}: {name!r} has more than {LARGEST_PART} bytes, as no file of CodeNet has")
            with _reading(path):
                content = read()
            if match[1] == "metadata":  # most rows are of other languages
                lines = io.BytesIO(content)
                content = lines.readline() + b"".join(line for line in lines if b",Python," in line)
            total += len(content)
            if total > LARGEST_DESCRIPTIONS:
                raise UserError(f"{path}: metadata and pages have more than {LARGEST_DESCRIPTIONS} bytes")
            texts = rows if match[1] == "metadata" else pages
            text = content.decode("utf-8-sig", "replace")
            texts[match[2]] = text.replace("\r\n", "\n").replace("\r", "\n")
    named = ", ".join(map(str, paths))
    if not rows:
        raise UserError(f"{named}: there is no metadata/pNNNNN.csv: name the folder or archive of the metadata as well")
    if not holds_sources:
        raise UserError(f"{named}: there is no source data/pNNNNN/Python/sNNNNNNNNN.py: give the data as well")
    return rows, pages


def read_sources(paths: Collection[Path], wanted: Collection[str]) -> Iterator[tuple[str, Sources]]:
    """Each wanted problem once with its sources: in the order of folders and archives, then those without any.

    Raises:
        UserError: a file cannot be read, an archive is damaged, or the sources of a problem are in several places or
            too large together.
    """
    seen: set[str] = set()
    for path in paths:
        files = (
            (match, size, read)
            for name, size, read in _files(path)
            if (match := _SOURCE.search(name)) and match[1] in wanted
        )
        for problem, own in groupby(files, lambda file: file[0][1]):
            if problem in seen:
                raise UserError(f"the sources of {problem} are in several places of the input: give one copy of them")
            seen.add(problem)
            sources: dict[str, bytes | None] = {}
            total = 0
            for match, size, read in own:
                with _reading(path):
                    sources[match[2]] = read() if size <= LARGEST_SOURCE else None
                total += min(size, LARGEST_SOURCE)
                if total > LARGEST_PART:
                    raise UserError(f"{path}: the sources of {problem} have more than {LARGEST_PART} bytes")
            yield problem, sources
    for problem in wanted:
        if problem not in seen:
            yield problem, {}


def _files(path: Path) -> Iterator[File]:
    return _folder_files(path) if path.is_dir() else _archive_files(path)


def _folder_files(root: Path) -> Iterator[File]:
    for folder in (root / "metadata", root / "problem_descriptions", *sorted(root.glob("data/*/Python"))):
        if folder.is_dir():
            with _reading(folder), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False):
                        path = Path(entry.path)
                        yield str(path.relative_to(root)), entry.stat().st_size, path.read_bytes


class _Member(tarfile.TarInfo):
    """A member whose header is refused if it is too large or damaged, which `tarfile` takes for the archive's end."""

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
            raise tarfile.ReadError(f"a header has {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._proc_gnusparse_10()
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse file, whose map may have no end")


def _archive_files(path: Path) -> Iterator[File]:
    with _reading(path), tarfile.open(path, tarinfo=_Member, encoding="utf-8") as archive:
        while (member := archive.next()) is not None:
            archive.pax_headers = {}  # as the members, it would grow with the archive
            archive.members.clear()  # type: ignore[attr-defined]
            if member.size < 0:  # of an extended header
                raise tarfile.ReadError("a member has a negative size")
            if member.isreg() and (file := archive.extractfile(member)):
                yield member.name, member.size, file.read


@contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    """Turn what reading raises into a sentence for the user."""
    try:
        yield
    except (OSError, *_DAMAGE) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of what is packed
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        raise UserError(f"{path} is an incomplete or damaged archive ({error!s:.200}): get it again") from None
