"""Several files about the same problems, such as the results of several models, read side by side.

Finished results have the order of their common input, so the files are read in lockstep, one record of each at a time.
What the records hold is not looked at here, besides their ids.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.stage.records import iterate_records


def read_together(paths: Sequence[Path]) -> Iterator[list[dict[str, Any]]]:
    """The records of each problem, one of each file in the order of the files.

    Args:
        paths: At least one.

    Raises:
        UserError: a file cannot be read, or the files do not have the same ids in the same order; the message names
            the file and the id.
    """
    for records in zip_longest(*map(iterate_records, paths)):
        first = next(record for record in records if record is not None)
        for path, record in zip(paths, records, strict=True):
            if record is None:
                raise UserError(
                    f"{path}: it ends before record {first['id']!r}, which another of the files has: {_RULE}"
                )
            if record["id"] != first["id"]:
                raise UserError(f"{path}: record {record['id']!r} stands where {paths[0]} has {first['id']!r}: {_RULE}")
        yield list(records)


_RULE = "give results of one input, each finished and in its order"


def writer_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its own, with as many folders before it as tell the files apart.

    Raises:
        UserError: a file is given twice.
    """
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(paths):
        if resolved[place] in resolved[:place]:
            raise UserError(f"{path} is given twice: name each file once")
    parts = [path.parts for path in resolved]
    length = 1
    while len({own[-length:] for own in parts}) < len(parts):
        length += 1
    return ["/".join(own[-length:]) for own in parts]
