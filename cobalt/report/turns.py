"""Pass@1 by turn of one run as a table for the terminal. No metric is computed here."""

from collections.abc import Sequence

from rich.table import Table

from cobalt.report.tables import few_problems
from cobalt.rollout.evaluate import TurnMetrics


def turn_table(metrics: Sequence[TurnMetrics], title: str) -> Table:
    """One row a turn, in per cent; a line below says if the problems are too few for its intervals."""
    note = few_problems(metrics[0].problems if metrics else None)
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for name in ("turn", "Pass@1 %", "95 % interval", "tests passed %", "relative change"):
        table.add_column(name, justify="right")
    for row in metrics:
        lower, upper = row.interval
        change = "n/a" if row.relative_change is None else f"{100 * row.relative_change:+.1f} %"
        table.add_row(
            str(row.turn),
            f"{100 * row.pass_at_1:.1f}",
            f"{100 * lower:.1f} to {100 * upper:.1f}",
            f"{100 * row.pass_rate:.1f}",
            change,
        )
    return table
