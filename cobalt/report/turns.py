"""Pass@1 by turn as a table for the terminal and as a plot. It computes no metric."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from cobalt.errors import UserError
from cobalt.rollout.evaluate import TurnMetrics

# Okabe and Ito's palette: told apart with any colour vision, and in print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def turn_table(metrics: Sequence[TurnMetrics], title: str) -> Table:
    """One row a turn, in per cent."""
    table = Table(title=title, title_justify="left")
    for name in ("turn", "Pass@1 %", "95 % interval", "tests passed %", "change to turn 0"):
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


def plot_turns(runs: Mapping[str, Sequence[TurnMetrics]], path: Path) -> None:
    """Write a PNG or SVG with one curve of Pass@1 by turn for each named run, its interval as a band.

    Raises:
        UserError: it cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for index, (name, metrics) in enumerate(runs.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        turns = [row.turn for row in metrics]
        axes.plot(
            turns,
            [100 * row.pass_at_1 for row in metrics],
            color=colour,
            marker=_MARKERS[index % len(_MARKERS)],
            label=name,
        )
        axes.fill_between(
            turns,
            [100 * row.interval[0] for row in metrics],
            [100 * row.interval[1] for row in metrics],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.set_xlabel("turn")
    axes.set_ylabel("Pass@1 on hidden tests, % (band: 95 % interval)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0, max(10, min(100, 1.2 * axes.get_ylim()[1])))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(f"cannot write the plot {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)


def check_plot_path(path: Path) -> None:
    """Refuse a plot's file before the work for it is done.

    Raises:
        UserError: it is neither PNG nor SVG.
    """
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"plot {path}: give a file that ends in .png or .svg")
