"""A page of results: tables between two marks of a markdown file, whose other text is kept.

CSV files and plots lie in a folder beside the page, with the page's name.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cobalt.report.tables import Table, to_csv, to_markdown
from cobalt.stage.errors import UserError, system_errors

Draw = Callable[[Path], None]
"""Draws a plot into a file."""


def marks(module: str) -> tuple[str, str]:
    """The lines that a module's tables stand between."""
    return f"<!-- begin: {module} -->", f"<!-- end: {module} -->"


def text_around(output: Path, module: str) -> tuple[str, str]:
    """The text before and after the tables of a module on a page, its marks included; for a new page, a heading.

    Raises UserError if the file is not text, or has no marks of this module.
    """
    begin, end = marks(module)
    if not output.exists():
        return f"# Results\n\n{begin}", f"{end}\n"
    try:
        text = output.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{output} is not a readable text file: name another one") from None
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise UserError(f"{output} has no lines {begin!r} and {end!r}: write them where the tables are to go")
    return before + begin, end + after


def write_page(
    output: Path, around: tuple[str, str], tables: Sequence[tuple[str, Table]], plots: Mapping[str, Draw]
) -> None:
    """Write tables, each under its heading, and the plot that follows a table, by the table's name.

    `around` is the text before and after them (`text_around`). Raises UserError if a file cannot be written.
    """
    before, after = around
    side = output.with_suffix("")
    parts = []
    with system_errors(f"cannot write {output} and {side}"):
        side.mkdir(parents=True, exist_ok=True)
        for heading, table in tables:
            (side / f"{table.name}.csv").write_text(to_csv(table), encoding="utf-8")
            parts.append(f"### {heading}\n\n{to_markdown(table)}")
            if table.name in plots:
                plots[table.name](side / f"{table.name}.png")
                parts.append(f"![{heading}]({side.name}/{table.name}.png)\n")
        output.write_text("\n".join([before, "", *parts, after]), encoding="utf-8")
