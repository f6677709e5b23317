"""Plots as PNG and SVG: Pass@1 by turn, training curves. No metric is computed here.

Colours are told apart with any colour vision; markers and dashes tell the same in black and white print.
The same figures give the same bytes. matplotlib is imported when a plot is drawn. A file that cannot be written is a
`UserError`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cobalt.report.curves import TrainingCurves
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.stage.errors import UserError

# Okabe and Ito's palette without its yellow, which is too light for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_DASHES = ("-", "--", "-.", ":")
_MOST_BANDS = 4
RUNNING_MEAN_STEPS = 5


def check_plot_path(path: Path) -> None:
    """Raise UserError if the path of a plot is neither PNG nor SVG."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"plot {path}: give a file that ends in .png or .svg")


def plot_turns(runs: Mapping[str, Sequence[TurnMetrics]], *paths: Path, styles: Sequence[str] | None = None) -> None:
    """Draw one curve of Pass@1 by turn for each named run into each of `paths`, with its interval if they are few.

    `styles` are names in an order that decides colours and markers, so that a run looks the same in several plots; by
    default it is that of `runs`.
    """
    figure, axes = _figure()
    few = len(runs) <= _MOST_BANDS
    for name, metrics in runs.items():
        style = _line_style(list(styles or runs).index(name))
        turns = [row.turn for row in metrics]
        shares = [100 * row.pass_at_1 for row in metrics]
        axes.plot(turns, shares, **style, label=_literal(name), clip_on=False)  # a marker at zero is shown whole
        if few:
            lower, upper = ([100 * row.interval[end] for row in metrics] for end in (0, 1))
            axes.fill_between(turns, lower, upper, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("turn")
    axes.set_ylabel("Pass@1, % (band: 95 % interval)" if few else "Pass@1, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if few:  # many curves use the whole height, so that they can be told apart
        axes.set_ylim(0, max(10, min(100, 1.2 * axes.get_ylim()[1])))
    _save(figure, axes, paths)


def plot_training(runs: Mapping[str, TrainingCurves], *paths: Path) -> None:
    """Draw the curves of training runs into each of `paths`: above the mean reward of each step, below validation.

    Rewards are a thin line, with their running mean over `RUNNING_MEAN_STEPS` steps as a thick one.
    """
    figure, (above, below) = _figure(panels=2)
    for index, (name, curves) in enumerate(runs.items()):
        style = _line_style(index)
        below.plot(*_columns(curves.validations, 100), **style, label=_literal(name))
        style["marker"] = ""
        above.plot(*_columns(curves.rewards), color=style["color"], linewidth=0.8, alpha=0.35)
        above.plot(*_columns(running_mean(curves.rewards)), **style, label=_literal(name))
    above.set_ylabel(f"mean reward (thick: of {RUNNING_MEAN_STEPS} steps)")
    below.set_ylabel("validation solved, %")
    below.set_xlabel("step")
    below.xaxis.get_major_locator().set_params(integer=True)
    _save(figure, above, paths)


def running_mean(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At each point, the mean of the last `RUNNING_MEAN_STEPS` points, or of all points where there are fewer."""
    windows = [points[max(0, end - RUNNING_MEAN_STEPS) : end] for end in range(1, len(points) + 1)]
    return [(window[-1][0], fmean(value for _, value in window)) for window in windows]


def _columns(points: Sequence[tuple[int, float]], factor: float = 1) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [factor * value for _, value in points]


def _line_style(index: int) -> dict[str, str]:
    styles = {"color": _COLOURS, "marker": _MARKERS, "linestyle": _DASHES}
    return {name: values[index % len(values)] for name, values in styles.items()}


def _figure(panels: int = 1) -> tuple[Any, Any]:
    """A figure and its axes, several one above the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(panels, figsize=(6, 4 if panels == 1 else 6), layout="constrained", sharex=True)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.3)
        one.set_axisbelow(True)
    return figure, axes


def _literal(text: str) -> str:
    """Text that matplotlib neither reads as a formula nor leaves out of the legend."""
    escaped = text.replace("$", r"\$")
    return " " + escaped if escaped.startswith("_") else escaped


def _save(figure: Any, axes: Any, paths: Sequence[Path]) -> None:
    """Write a figure, with the legend of some of its axes above them, where no curve or bar is."""
    import matplotlib
    from matplotlib import pyplot

    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), 3) if all(len(label) <= 24 for label in labels) else 1
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize="small")
    try:
        # Element ids and the date would otherwise differ from one writing to the next.
        with matplotlib.rc_context({"svg.hashsalt": "cobalt"}):
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UserError(f"cannot write the plot {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
