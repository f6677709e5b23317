"""Project CodeNet's files: metadata, problem pages and Python sources, from folders or from tar archives.

| path in the data set | what it holds |
|---|---|
| `metadata/pNNNNN.csv` | the submissions of a problem, one a row |
| `problem_descriptions/pNNNNN.html` | a problem's page |
| `data/pNNNNN/Python/sNNNNNNNNN.py` | a submission's source |

Archives are read as streams, whatever the order of their files: once for the metadata and the pages, of which the
Python rows and the pages are kept in a temporary folder, and once for the sources, of which those of one problem at a
time are in memory. Nothing is interpreted here.
"""

import os
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from cobalt.errors import UserError

LARGEST_SOURCE = 1 << 20
"""Bytes. Larger files are not read; online judges accept no such submission."""

_METADATA = re.compile(r"(?:^|/)metadata/(p\d+)\.csv$")
_PAGE = re.compile(r"(?:^|/)problem_descriptions/(p\d+)\.html$")
_SOURCE = re.compile(r"(?:^|/)data/(p\d+)/Python/(s\d+)\.\w+$")
_SOURCE_NAME = re.compile(r"(s\d+)\.\w+")

Sources = Mapping[str, bytes | None]
"""The sources of a problem by submission; None for a file over `LARGEST_SOURCE`."""


@dataclass(frozen=True, slots=True)
class CodeNetFiles:
    """Where the parts of a data set are.

    Attributes:
        metadata: The file of each problem's rows; of an archive, its header and its Python rows.
        pages: The file of each problem's page.
        folders: Folders that hold `data`.
        archives: Archives that hold sources.
    """

    metadata: Mapping[str, Path]
    pages: Mapping[str, Path]
    folders: tuple[Path, ...]
    archives: tuple[Path, ...]


def find_files(paths: Collection[Path], scratch: Path) -> CodeNetFiles:
    """Find the files of a data set that is in folders and archives.

    Args:
        paths: Folders (the data set's own, or one that holds it) and archives.
        scratch: An empty folder for what archives hold of metadata and pages.

    Raises:
        UserError: a path is neither or cannot be read, an archive is damaged, or there are no metadata or no sources.
    """
    metadata: dict[str, Path] = {}
    pages: dict[str, Path] = {}
    folders, archives = [], []
    for number, path in enumerate(paths):
        if path.is_dir():
            with _reading(path):
                root = _root(path)
                files = sorted((root / "metadata").glob("p*.csv"))
                metadata |= {file.stem: file for file in files if _is_problem(file)}
                pages |= {file.stem: file for file in sorted((root / "problem_descriptions").glob("p*.html"))}
                folders += [root] if (root / "data").is_dir() else []
        else:
            copies = scratch / str(number)
            holds_sources = _copy_small_files(path, copies)
            metadata |= {file.stem: file for file in sorted(copies.glob("*.csv"))}
            pages |= {file.stem: file for file in sorted(copies.glob("*.html"))}
            archives += [path] if holds_sources else []
    named = ", ".join(map(str, paths))
    if not metadata:
        lacks = f"{named}: there is no metadata/pNNNNN.csv"
        if folders or archives:
            raise UserError(f"{lacks}, but there are sources: name the folder or archive of the metadata as well")
        raise UserError(f"{lacks}: give the folder or archive of Project CodeNet")
    if not folders and not archives:
        raise UserError(f"{named}: there is no source data/pNNNNN/Python/sNNNNNNNNN.py: give the data as well")
    return CodeNetFiles(metadata, pages, tuple(folders), tuple(archives))


def read_sources(files: CodeNetFiles, wanted: Collection[str]) -> Iterator[tuple[str, Sources]]:
    """The sources of problems, one problem at a time.

    Args:
        files: The data set.
        wanted: The problems whose sources are wanted.

    Yields:
        Each wanted problem once, with its sources. Problems in folders come in the order of `wanted`, those in archives
        in the order of the archive, and then problems without any source.

    Raises:
        UserError: a file cannot be read, an archive is damaged, or the sources of a problem are in several places.
    """
    seen: set[str] = set()
    from_folders = (_folder_sources(folder, wanted) for folder in files.folders)
    from_archives = (_archive_sources(archive, frozenset(wanted)) for archive in files.archives)
    for problem, sources in chain(*from_folders, *from_archives):
        if problem in seen:
            raise UserError(
                f"the sources of {problem} are in several places of the input: extract the archive and give the folder,"
                " or give only one copy of the data"
            )
        seen.add(problem)
        yield problem, sources
    for problem in wanted:
        if problem not in seen:
            yield problem, {}


def _folder_sources(root: Path, wanted: Collection[str]) -> Iterator[tuple[str, Sources]]:
    for problem in wanted:
        folder = root / "data" / problem / "Python"
        if folder.is_dir():
            try:
                with os.scandir(folder) as entries:
                    found = ((_SOURCE_NAME.fullmatch(entry.name), entry.path) for entry in entries)
                    sources = {name[1]: _bytes(path) for name, path in found if name is not None}
            except OSError as error:
                raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
            yield problem, sources


def _bytes(path: str) -> bytes | None:
    # Not by a Path: for millions of small files, making one takes as long as reading.
    with open(path, "rb", buffering=0) as handle:  # noqa: PTH123
        return handle.read() if os.fstat(handle.fileno()).st_size <= LARGEST_SOURCE else None


def _archive_sources(archive: Path, wanted: frozenset[str]) -> Iterator[tuple[str, Sources]]:
    current, sources = "", dict[str, bytes | None]()
    for name, size, content in _members(archive):
        found = _SOURCE.search(name)
        if found is None or found[1] not in wanted:
            continue
        if found[1] != current:
            if sources:
                yield current, sources
            current, sources = found[1], {}
        sources[found[2]] = content() if size <= LARGEST_SOURCE else None
    if sources:
        yield current, sources


def _copy_small_files(archive: Path, folder: Path) -> bool:
    """Copy the pages and the Python rows of an archive into a folder; returns whether it has sources, too."""
    folder.mkdir(parents=True)
    holds_sources = False
    for name, _, content in _members(archive):
        if _SOURCE.search(name):
            holds_sources = True
        elif found := _METADATA.search(name):
            header, *rows = content().splitlines(keepends=True) or [b""]
            _copy(folder / f"{found[1]}.csv", header + b"".join(row for row in rows if b",Python," in row))
        elif found := _PAGE.search(name):
            _copy(folder / f"{found[1]}.html", content())
    return holds_sources


def _copy(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}: set TMPDIR to a folder with more room") from None


# Where a header has what is read of it; a name may begin in the prefix.
_NAME, _SIZE, _CHECKSUM, _TYPE, _PREFIX = slice(100), slice(124, 136), slice(148, 156), slice(156, 157), 345


def _checksum(header: bytes | bytearray) -> int:
    """The sum of a header's bytes, for which those of the checksum itself count as spaces."""
    return sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")


class _Member(tarfile.TarInfo):
    """A member of an archive, whose header must be whole.

    The standard library takes a damaged header, and the end of a file that was cut off, for the end of the archive. It
    also reads every field of a header, which takes most of the time for an archive of millions of small files.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """A member from its header; of a plain regular file only what is used here: name, type and size.

        Raises:
            tarfile.HeaderError: the header is damaged, or the archive ends here.
        """
        try:
            is_plain = len(buf) == tarfile.BLOCKSIZE and buf[_TYPE] == tarfile.REGTYPE and not buf[_PREFIX]
            if is_plain and _checksum(buf) == int(buf[_CHECKSUM].partition(b"\0")[0], 8):
                member = cls(buf[_NAME].partition(b"\0")[0].decode(encoding, errors))
                member.size = int(buf[_SIZE].partition(b"\0")[0], 8)
                return member
        except ValueError:
            pass  # a number in another form, or damaged: the standard library decides
        return super().frombuf(buf, encoding, errors)

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Read the next member.

        Raises:
            tarfile.HeaderError: the archive ends here, by its mark.
            tarfile.ReadError: there is neither a member nor the mark of the end.
        """
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Name, size and content of each regular file of an archive, in its order; the content only while it is current."""
    with _reading(archive), tarfile.open(archive, "r|*", tarinfo=_Member) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would grow with the number of files
            if member.isreg():
                yield member.name, member.size, lambda member=member: _content(tar, member)  # type: ignore[misc]


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    handle = tar.extractfile(member)
    return b"" if handle is None else handle.read()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what reading an archive or listing a folder raises into a UserError that names it."""
    try:
        yield
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is an incomplete or damaged tar archive ({error}): download it again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def _root(path: Path) -> Path:
    """The data set's own folder: the path, or the only folder in it that looks like one.

    Raises:
        UserError: several folders in it look like one.
    """
    parts = ("metadata", "data", "problem_descriptions")
    if any((path / part).is_dir() for part in parts):
        return path
    within = [folder for folder in sorted(path.iterdir()) if any((folder / part).is_dir() for part in parts)]
    if len(within) > 1:
        named = ", ".join(folder.name for folder in within)
        raise UserError(f"{path}: more than one folder in it looks like Project CodeNet ({named}): name those to read")
    return within[0] if within else path


def _is_problem(file: Path) -> bool:
    return re.fullmatch(r"p\d+", file.stem) is not None
