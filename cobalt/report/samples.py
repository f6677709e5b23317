"""Pass@k and diversity of one single-turn run as a table for the terminal. No metric is computed here."""

from collections.abc import Sequence

from rich.table import Table

from cobalt.report.tables import few_problems
from cobalt.rollout.evaluate_single import SampleMetrics
from cobalt.rollout.protocols import Mean


def samples_table(metrics: Sequence[SampleMetrics], title: str) -> Table:
    """One row a group of problems; pass@k in per cent, each figure with its 95 % interval.

    A line below says if a group has too few problems for its intervals.
    """
    note = few_problems(min(row.problems for row in metrics))
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    table.add_column("problems")
    ks = list(metrics[0].pass_at)
    columns = ("", "samples", *(f"Pass@{k} %" for k in ks), "different programs", "different right programs")
    for name in columns:
        table.add_column(name, justify="right")
    for row in metrics:
        fewest, most = row.samples
        table.add_row(
            row.group,
            str(row.problems),
            str(fewest) if fewest == most else f"{fewest} to {most}",
            *(_shown(row.pass_at[k], 100.0) for k in ks),
            _shown(row.distinct, 1.0),
            _shown(row.distinct_correct, 1.0),
        )
    return table


def _shown(mean: Mean, unit: float) -> str:
    lower, upper = mean.interval
    return f"{unit * mean.value:.1f} ({unit * lower:.1f} to {unit * upper:.1f})"
