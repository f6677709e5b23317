"""Rows of a local file of a data set, one at a time, and fields of a row. `cobalt.problems.hub` has rows by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cobalt.problems.hub import Row
from cobalt.stage.errors import UserError
from cobalt.stage.rows import read_rows


def local_rows(path: Path) -> Iterator[Row]:
    """The rows of a file in any form of `cobalt.stage.rows`, in its order.

    Raises:
        UserError: another kind of file, unreadable or truncated.
    """
    for place, row in read_rows(path):
        yield f"{path}, {place}", row


def field_of(row: Mapping[str, Any], name: str) -> Any:
    """A field that every row of a data set has; None where it is null.

    Raises:
        UserError: the row does not have it, so that it is one of another data set.
    """
    if name not in row:
        raise UserError(f"field {name!r} is missing")
    return row[name]


def text_of(row: dict[str, Any], name: str) -> str:
    """A field of a row that must be a string, with newlines as line ends.

    Raises:
        UserError: it is missing or not a string; the message names it.
    """
    value = row.get(name)
    if not isinstance(value, str):
        raise UserError(f"field {name!r} is missing or not a string")
    return value.replace("\r\n", "\n")


def texts_of(row: dict[str, Any], name: str) -> list[str]:
    """A field of a row that must be a list of strings, with newlines as line ends.

    Raises:
        UserError: it is missing or not a list of strings; the message names it.
    """
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"field {name!r} is missing or not a list of strings")
    return [item.replace("\r\n", "\n") for item in value]
