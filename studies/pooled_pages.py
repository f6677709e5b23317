"""One table of pages whose seeds ran on different machines.

    python -m studies.pooled_pages docs/RESULTS docs/RESULTS_seed2

The folders are those beside pages of studies.offline, each of which counts with the number of its seeds. The worlds of
the seeds are independent, so the variance of the mean is the sum of the pages' own, each from the width of its interval
(3.92 standard deviations of a normal distribution). "Over runs" is Student's interval of the seeds' own gains.
"""

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from cobalt.report.tables import Table, to_markdown
from cobalt.stage.cli import run_script
from cobalt.stage.errors import system_errors
from studies.seed_tables import gain_cells
from studies.seeds import Estimate, Gain, over_runs

_TURNS = (0, 8)
_OTHERS = ("base", "SFT")

Page = dict[tuple[str, int], dict[str, str]]
"""The rows of a CSV file by method and turn."""


@dataclass(frozen=True)
class Arguments:
    """Pool the tables of several pages."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of CSV files."""


def _read(file: Path) -> Page:
    with system_errors(f"cannot read {file}"), file.open(newline="", encoding="utf-8") as lines:
        return {(row["method"], int(row["turn"])): row for row in csv.DictReader(lines)}


def pooled_table(folders: Sequence[Path]) -> Table:
    """The table, see above; KL is in nats a token, and has no mean where a page has not measured it.

    Raises UserError if a file cannot be read.
    """
    reached = [_read(folder / "offline.csv") for folder in folders]
    gained = {other: [_read(folder / f"offline_gain_{other.lower()}.csv") for folder in folders] for other in _OTHERS}

    def by_seed(method: str, turn: int, pages: Sequence[Page] = reached) -> list[float]:
        rows = (page[method, turn] for page in pages)
        return [float(value) for row in rows for name, value in row.items() if name.startswith("seed_")]

    weights = [len(by_seed("base", 0, [page])) for page in reached]
    shares = [weight / sum(weights) for weight in weights]

    def gain_over(other: str, method: str, turn: int) -> Gain:
        """The pages have the difference of the other row to the method."""
        rows = [page[method, turn] for page in gained[other]]
        middle = -sum(share * float(row["difference"]) for share, row in zip(shares, rows, strict=True))
        widths = [float(row["upper"]) - float(row["lower"]) for row in rows]
        half = math.hypot(*(share * width / 2 for share, width in zip(shares, widths, strict=True)))
        each = zip(by_seed(method, turn), by_seed(other, turn), strict=True)
        return Gain(Estimate(middle, middle - half, middle + half), over_runs([own - base for own, base in each]))

    cells = []
    for method in dict.fromkeys(method for method, _ in reached[0]):
        row = [method]
        for turn in _TURNS:
            values = by_seed(method, turn)
            row += [" / ".join(f"{100 * value:.1f}" for value in values), f"{100 * sum(values) / len(values):.1f}"]
            for other in _OTHERS:
                over, runs = ("", "") if other == method else gain_cells(gain_over(other, method, turn))
                row += [over.replace("*", ""), runs]
        measured = [page[method, 0]["kl"] for page in reached]
        mean = sum(share * float(kl or "nan") for share, kl in zip(shares, measured, strict=True))
        cells.append([*row, *(["not measured", ""] if math.isnan(mean) else [" / ".join(measured), f"{mean:.3f}"])])
    of_turn = ["mean", *(text for other in _OTHERS for text in (f"less {other}", "over runs"))]
    heads = [text for turn in _TURNS for text in (f"turn {turn}, by seed", *of_turn)]
    return Table("pooled", "", ["", *heads, "KL, by page", "mean KL"], cells, (), [])


def main(arguments: Arguments) -> int:
    """Print the table."""
    sys.stdout.write(to_markdown(pooled_table(arguments.folders)) + "\n")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
