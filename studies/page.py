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


def write_page(
    output: Path, module: str, tables: Sequence[tuple[str, Table]], plots: Mapping[str, Draw] | None = None
) -> None:
    """Write a module's tables, each under its heading, and the plot that follows a table, by the table's name.

    Raises UserError if the page is there and has no marks of the module, or a file cannot be read or written.
    """
    begin, end = marks(module)
    side, parts = output.with_suffix(""), []
    with system_errors(f"cannot write {output} and {side}"):
        text = output.read_text(encoding="utf-8") if output.exists() else f"# Results\n\n{begin}\n{end}\n"
        before, has_begin, rest = text.partition(begin)
        _, has_end, after = rest.partition(end)
        if not has_begin or not has_end:
            raise UserError(f"{output} has no lines {begin!r} and {end!r}: write them where the tables are to go")
        side.mkdir(parents=True, exist_ok=True)
        for heading, table in tables:
            (side / f"{table.name}.csv").write_text(to_csv(table), encoding="utf-8")
            parts.append(f"### {heading}\n\n{to_markdown(table)}")
            if plots and table.name in plots:
                plots[table.name](side / f"{table.name}.png")
                parts.append(f"![{heading}]({side.name}/{table.name}.png)\n")
        output.write_text("\n".join([before + begin, "", *parts, end + after]), encoding="utf-8")
