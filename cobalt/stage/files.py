"""Checks of the paths that a command reads and writes, before anything slow begins and before anything is written.

Whether a result can be written shows when it is opened (`cobalt.stage.run`), which is before the work as well.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from cobalt.stage.errors import UserError, system_errors
from cobalt.stage.manifest import companion_path

COMPANIONS = (".run.json", ".errors.jsonl", ".calls.jsonl", ".metrics.json")
"""Suffixes of the companion files that commands write next to a result `X.jsonl`, in place of `.jsonl`."""


def check_files(inputs: Iterable[Path], results: Iterable[Path]) -> None:
    """Check that inputs can be read, that results may be files, and that no file is both, or two results.

    Links and different spellings of a path count as the same file. Nothing is changed, and no folder is made.

    Raises:
        UserError: a check failed; the message names the file.
    """
    read = list(inputs)
    for path in read:
        with system_errors(f"cannot read {path}"):
            if path.exists() and not path.is_dir() and not path.is_file():
                raise UserError(f"cannot read {path}: it is a pipe or a device, and the file is read more than once")
            path.open("rb").close()
    written: set[str] = set()
    for result in results:
        check_result_path(result)
        companions = [companion_path(result, suffix) for suffix in COMPANIONS]
        for path in (result, result.with_name(result.name + ".part"), *companions):
            if path.exists() and any(path.samefile(item) for item in read):
                raise UserError(f"{path} is an input, and {result} would replace it: name another output file")
        if os.path.realpath(result) in written:
            raise UserError(f"{result} is named for two results of this command: name another file for one of them")
        written.add(os.path.realpath(result))


def check_result_path(path: Path) -> None:
    """Raise UserError if a result path is a folder, a device or empty."""
    with system_errors(f"cannot write {path}"):
        if path.is_dir():
            raise UserError(f"'{path}' is a folder: name a file, as in {path / 'result.jsonl'}")
        if not path.name or (path.exists() and not path.is_file()):
            raise UserError(f"'{path}' is not a file that a result can be written to: give the result a file name")
