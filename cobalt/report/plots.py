"""The plot of Pass@1 by turn as PNG and SVG. No metric is computed here.

Colours are told apart with any colour vision; markers and dashes tell the same in black and white print.
The same figures give the same bytes. matplotlib is imported when a plot is drawn.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cobalt.rollout.evaluate import TurnMetrics
from cobalt.stage.errors import system_errors

# Okabe and Ito's palette without its yellow, which is too light for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
_DASHES = ("-", "--", "-.", ":")
_MOST_BANDS = 4


def plot_turns(runs: Mapping[str, Sequence[TurnMetrics]], *paths: Path, styles: Sequence[str] | None = None) -> None:
    """Draw one curve of Pass@1 by turn for each named run into each of `paths`, with its interval if they are few.

    `styles` are names in an order that decides colours and markers, so that a run looks the same in several plots; by
    default it is that of `runs`.

    Raises:
        UserError: a file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    few = len(runs) <= _MOST_BANDS
    for name, metrics in runs.items():
        index = list(styles or runs).index(name)
        colour, marker, dash = (values[index % len(values)] for values in (_COLOURS, _MARKERS, _DASHES))
        turns, shares = [row.turn for row in metrics], [100 * row.pass_at_1 for row in metrics]
        style = {"color": colour, "marker": marker, "linestyle": dash, "label": _literal(name)}
        axes.plot(turns, shares, **style, clip_on=False)  # a marker at zero is shown whole
        if few:
            lower, upper = ([100 * row.interval[end] for row in metrics] for end in (0, 1))
            axes.fill_between(turns, lower, upper, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("turn")
    axes.set_ylabel("Pass@1, % (band: 95 % interval)" if few else "Pass@1, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if few:  # many curves use the whole height, so that they can be told apart
        axes.set_ylim(0, max(10, min(100, 1.2 * axes.get_ylim()[1])))
    columns = min(len(runs), 3) if all(len(name) <= 24 for name in runs) else 1
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize="small")
    # Element ids and the date would otherwise differ from one writing to the next.
    with matplotlib.rc_context({"svg.hashsalt": "cobalt"}):
        for path in paths:
            with system_errors(f"cannot write the plot {path}"):
                path.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _literal(text: str) -> str:
    """Text that matplotlib neither reads as a formula nor leaves out of the legend."""
    escaped = text.replace("$", r"\$")
    return " " + escaped if escaped.startswith("_") else escaped
