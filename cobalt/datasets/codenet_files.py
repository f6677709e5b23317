"""Project CodeNet's files: metadata, problem pages and Python sources, from folders or from tar archives.

| path in the data set | what it holds |
|---|---|
| `metadata/pNNNNN.csv` | the submissions of a problem, one a row |
| `problem_descriptions/pNNNNN.html` | a problem's page |
| `data/pNNNNN/Python/sNNNNNNNNN.py` | a submission's source |

Archives are read as streams, whatever the order of their files: once for the metadata and the pages, of which the
Python rows and the pages are kept in a temporary folder, and once for the sources, of which those of one problem at a
time are in memory. Nothing is interpreted here.

The files may come from anybody. Only regular files are read, in folders and in archives: links, pipes and devices among
the sources are passed over, and elsewhere they are a mistake. No part is read that is larger than such parts are.
"""

import io
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cobalt.datasets.tar_files import tar_files
from cobalt.stage.errors import UserError

LARGEST_SOURCE = 1 << 20
"""Bytes. Larger files are not read; online judges accept no such submission."""
LARGEST_METADATA = 1 << 28
"""Bytes of a problem's rows. A row has about 100 bytes, and no problem has a million submissions."""
LARGEST_PAGE = 1 << 24
"""Bytes of a problem's page, a text whose figures are files of their own."""
LARGEST_PROBLEM = 1 << 28
"""Bytes of a problem's sources, which are in memory together: 250,000 of the usual size."""
LARGEST_COPIES = 1 << 32
"""Bytes of the pages and Python rows that are copied out of an archive; the whole data set has less than 1 GiB."""

_PROBLEM = r"p[0-9]{1,20}"
_SMALL = re.compile(rf"(?:^|/)(metadata/{_PROBLEM}\.csv|problem_descriptions/{_PROBLEM}\.html)$")
_SOURCE = re.compile(rf"(?:^|/)data/({_PROBLEM})/Python/(s[0-9]{{1,20}})\.\w+$")
_SOURCE_NAME = re.compile(r"(s[0-9]{1,20})\.\w+")

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
        UserError: a path is neither or cannot be read, an archive is damaged, a part is too large or not a regular
            file, or there are no metadata or no sources.
    """
    metadata: dict[str, Path] = {}
    pages: dict[str, Path] = {}
    folders, archives = [], []
    for number, path in enumerate(paths):
        try:
            if path.is_dir():
                root = _root(path)
                folders += [root] if _is_folder(root / "data") else []
            else:
                root = scratch / str(number)
                archives += [path] if _copy_small_files(path, root) else []
            metadata |= _files_of(root / "metadata", "csv", LARGEST_METADATA)
            pages |= _files_of(root / "problem_descriptions", "html", LARGEST_PAGE)
        except OSError as error:
            raise UserError(f"cannot read or copy {error.filename or path}: {error.strerror or error}") from None
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
        UserError: a file cannot be read, an archive is damaged, the sources of a problem are in several places, or they
            are too large together.
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


def open_regular(path: str, flags: int) -> int:
    """An opener for `open` that opens regular files alone: it follows no link, and waits for no pipe.

    Raises:
        OSError: the path is another kind of file, or cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a regular file", path)
    return descriptor


def _folder_sources(root: Path, wanted: Collection[str]) -> Iterator[tuple[str, Sources]]:
    for problem in wanted:
        folder = root / "data" / problem / "Python"
        if _is_folder(folder.parent) and _is_folder(folder):
            sources: dict[str, bytes | None] = {}
            total = 0
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        name = _SOURCE_NAME.fullmatch(entry.name)
                        if name is not None and entry.is_file(follow_symlinks=False):
                            source = sources[name[1]] = _bytes(entry.path)
                            total += len(source or b"")
                            _check_size(f"{folder}: the sources", total, LARGEST_PROBLEM)
            except OSError as error:
                raise UserError(f"cannot read {error.filename}: {error.strerror}") from None
            yield problem, sources


def _bytes(path: str) -> bytes | None:
    # Not by a Path: for millions of small files, making one takes as long as reading.
    with open(path, "rb", buffering=0, opener=open_regular) as handle:
        return handle.read() if os.fstat(handle.fileno()).st_size <= LARGEST_SOURCE else None


def _archive_sources(archive: Path, wanted: frozenset[str]) -> Iterator[tuple[str, Sources]]:
    current, sources, total = "", dict[str, bytes | None](), 0
    for name, size, content in tar_files(archive):
        match = _SOURCE.search(name)
        if match is None or match[1] not in wanted:
            continue
        if match[1] != current:
            if sources:
                yield current, sources
            current, sources, total = match[1], {}, 0
        source = sources[match[2]] = content() if size <= LARGEST_SOURCE else None
        total += len(source or b"")
        _check_size(f"{archive}: the sources of {current}", total, LARGEST_PROBLEM)
    if sources:
        yield current, sources


def _copy_small_files(archive: Path, folder: Path) -> bool:
    """Copy the pages and the Python rows of an archive into a folder, and tell whether it has sources, too."""
    for part in ("metadata", "problem_descriptions"):
        (folder / part).mkdir(parents=True)
    holds_sources, total = False, 0
    for name, size, content in tar_files(archive):
        if _SOURCE.search(name):
            holds_sources = True
        elif match := _SMALL.search(name):
            path = folder / match[1]
            _check_size(f"{archive}: {name!r}", size, LARGEST_METADATA if path.suffix == ".csv" else LARGEST_PAGE)
            copy = content()
            if path.suffix == ".csv":
                lines = io.BytesIO(copy)
                copy = lines.readline() + b"".join(row for row in lines if b",Python," in row)
            total += len(copy)
            _check_size(f"{archive}: metadata and pages", total, LARGEST_COPIES)
            path.write_bytes(copy)
    return holds_sources


def _check_size(what: str, size: int, largest: int) -> None:
    if size > largest:
        raise UserError(f"{what}: {size} bytes, and no copy of Project CodeNet has more than {largest} there")


def _is_folder(path: Path) -> bool:
    """Whether there is a folder; a link to one is refused."""
    if path.is_symlink():
        raise UserError(f"{path} is a link, and links in a data set are not followed: name the folder itself as input")
    return path.is_dir()


def _files_of(folder: Path, suffix: str, largest: int) -> dict[str, Path]:
    """The files of problems in a folder, by problem; anything but regular files of a usual size is refused."""
    files = {}
    for file in sorted(folder.glob(f"p*.{suffix}")) if _is_folder(folder) else []:
        if re.fullmatch(_PROBLEM, file.stem):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{file} is not a regular file: links, pipes and devices in a data set are not read")
            _check_size(str(file), status.st_size, largest)
            files[file.stem] = file
    return files


def _root(path: Path) -> Path:
    """The data set's own folder: the path, or the only folder in it that looks like one."""
    parts = ("metadata", "data", "problem_descriptions")
    if any((path / part).is_dir() for part in parts):
        return path
    inner = [folder for folder in sorted(path.iterdir()) if not folder.is_symlink()]
    within = [folder for folder in inner if any((folder / part).is_dir() for part in parts)]
    if len(within) > 1:
        named = ", ".join(folder.name for folder in within)
        raise UserError(f"{path}: more than one folder in it looks like Project CodeNet ({named}): name those to read")
    return within[0] if within else path
