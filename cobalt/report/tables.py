"""Tables for people (markdown) and for programs (CSV). What they say is decided elsewhere."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cobalt.rollout.metrics import FEW_PROBLEMS

_FORMULAS = ("=", "+", "-", "@", "\t", "\n")
_MARKDOWN = re.compile(r"([\\`*_<>\[\]|~$#&!])")


@dataclass(frozen=True, slots=True)
class Table:
    """One table in two forms.

    Attributes:
        name: Stem of its files.
        caption: Content of the table, in one or two sentences.
        header: Column heads of the shown form; the first column holds names, the others figures.
        rows: Its cells, as shown.
        data_header: Column names of the CSV form, one observation a line.
        data_rows: Its values, unrounded; None is an empty cell.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    data_header: Sequence[str]
    data_rows: Sequence[Sequence[object]]


def few_problems(number: int | None) -> str:
    """A sentence for below a table whose intervals are over fewer than `FEW_PROBLEMS` problems; "" otherwise."""
    if number is None or number >= FEW_PROBLEMS:
        return ""
    return (
        f"Only {number} problem{'s' if number > 1 else ''}: draw no conclusions from these figures. Below"
        f" {FEW_PROBLEMS} problems the intervals are too narrow, except where all values are equal."
    )


def to_markdown(table: Table) -> str:
    """The table in GitHub's markdown, its caption below it."""
    lines = [table.header, ["---"] + ["---:"] * (len(table.header) - 1), *table.rows]
    cells = [[cell if index == 1 else escape_markdown(cell) for cell in line] for index, line in enumerate(lines)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"{body}\n\n{escape_markdown(table.caption)}\n"


def to_csv(table: Table) -> str:
    """The unrounded figures as CSV (RFC 4180, with newlines as line ends).

    A text that a spreadsheet would take for a formula begins with an apostrophe. Carriage returns become newlines,
    because the module `csv` does not quote them.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.data_header)
    writer.writerows([_no_formula(cell) for cell in row] for row in table.data_rows)
    return text.getvalue()


def _no_formula(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULAS) else text


def escape_markdown(text: str) -> str:
    """Text that markdown shows as it is, on one line; characters that control a terminal are replaced."""
    line = "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
    return _MARKDOWN.sub(r"\\\1", line)
