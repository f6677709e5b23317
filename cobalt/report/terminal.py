"""Tables of one evaluation for the terminal. No metric is computed here."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from cobalt.report.run_tables import shown
from cobalt.report.tables import few_problems
from cobalt.rollout.evaluate import SampleMetrics, TurnMetrics
from cobalt.rollout.protocols import ORACLE, Mean


def turn_table(metrics: Sequence[TurnMetrics], title: str) -> Table:
    """Pass@1 by turn: one row a turn, in per cent; a line below says if the problems are too few for its intervals."""
    note = few_problems(metrics[0].problems)
    table = _table(title, note, "turn", "Pass@1 %", "95 % interval", "tests passed %", "relative change")
    for row in metrics:
        change = "n/a" if row.relative_change is None else f"{100 * row.relative_change:+.1f} %"
        interval = " to ".join(f"{100 * bound:.1f}" for bound in row.interval)
        table.add_row(str(row.turn), f"{100 * row.pass_at_1:.1f}", interval, f"{100 * row.pass_rate:.1f}", change)
    return table


def samples_table(metrics: Sequence[SampleMetrics], title: str) -> Table:
    """Pass@k and diversity of a single-turn run: one row a group of problems, each figure with its 95 % interval.

    A line below says if a group has too few problems for its intervals.
    """
    note = few_problems(min(row.problems for row in metrics))
    ks = list(metrics[0].pass_at)
    columns = ("", "samples", *(f"Pass@{k} %" for k in ks), "different programs", "different right programs")
    table = _table(title, note, "problems", *columns)
    table.columns[0].justify = "left"
    for row in metrics:
        fewest, most = row.samples
        figures = [_figure(row.pass_at[k], 100.0) for k in ks]
        figures += [_figure(row.distinct, 1.0), _figure(row.distinct_correct, 1.0)]
        samples = str(fewest) if fewest == most else f"{fewest} to {most}"
        table.add_row(row.group, str(row.problems), samples, *figures)
    return table


def protocols_for_terminal(figures: Mapping[str, Sequence[Mean]], title: str) -> Table:
    """The measures of one run besides the paper's protocol: a column for each measure, a row for each turn."""
    oracle = any(name.startswith(ORACLE) for name in figures)
    note = "oracle: every hidden test is a public test, so the best is chosen by the tests that decide"
    table = _table(title, note if oracle else "", "turn", *figures)
    for turn, means in enumerate(zip(*figures.values(), strict=True)):
        table.add_row(str(turn), *(shown(mean, name) for name, mean in zip(figures, means, strict=True)))
    return table


def _table(title: str, note: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _figure(mean: Mean, unit: float) -> str:
    lower, upper = mean.interval
    return f"{unit * mean.value:.1f} ({unit * lower:.1f} to {unit * upper:.1f})"
