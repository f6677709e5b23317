"""What a run counted, as a table for the terminal."""

from collections.abc import Mapping

from rich.table import Table


def summary_table(summary: Mapping[str, Mapping[str, int | float]], title: str) -> Table:
    """One section for each group of counts, one row for each count."""
    table = Table(title=title, title_justify="left")
    table.add_column("of")
    table.add_column("what")
    table.add_column("count", justify="right")
    for group, counts in summary.items():
        for index, (name, count) in enumerate(counts.items()):
            table.add_row(group if index == 0 else "", name, f"{count:,}")
        table.add_section()
    return table
