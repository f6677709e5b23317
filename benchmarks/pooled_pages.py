"""One table of pages whose seeds ran on different machines: Pass@1 of every seed, the mean, and the gain over base.

    python benchmarks/pooled_pages.py docs/RESULTS docs/RESULTS_seed2

The folders are those beside pages of cobalt.studies.offline_results. Each page counts with the number of its seeds. The
worlds of the seeds are independent, so the variance of the mean is the sum of the pages' own, each from the width of
its interval (which is 3.92 standard deviations of a normal distribution).
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from cobalt.cli import run_script
from cobalt.report.tables import Table, to_markdown

_TURNS = (0, 8)


@dataclass(frozen=True)
class Arguments:
    """Pool the tables of several pages."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of CSV files."""


Row = dict[str, str]


def read(file: Path) -> dict[tuple[str, int], Row]:
    """The rows of a CSV file by method and turn."""
    with file.open(newline="", encoding="utf-8") as lines:
        return {(row["method"], int(row["turn"])): row for row in csv.DictReader(lines)}


def by_seed(row: Row) -> list[float]:
    """Pass@1 of each seed."""
    return [float(value) for name, value in row.items() if name.startswith("seed_")]


def pooled(rows: Sequence[Row], weights: Sequence[int]) -> tuple[float, float]:
    """A difference over all seeds, and half the width of its 95 % interval."""
    shares = [weight / sum(weights) for weight in weights]
    middle = sum(share * float(row["difference"]) for share, row in zip(shares, rows, strict=True))
    halves = [(float(row["upper"]) - float(row["lower"])) / 2 for row in rows]
    return middle, math.hypot(*(share * half for share, half in zip(shares, halves, strict=True)))


def main(arguments: Arguments) -> int:
    """Print the table."""
    reached = [read(folder / "offline.csv") for folder in arguments.folders]
    gained = {
        base: [read(folder / f"offline_gain_{base}.csv") for folder in arguments.folders] for base in ("base", "sft")
    }
    cells = []
    for method in dict.fromkeys(method for method, _ in reached[0]):
        row = [method]
        for turn in _TURNS:
            of_pages = [by_seed(page[method, turn]) for page in reached]
            values = [value for of_page in of_pages for value in of_page]
            row += [" / ".join(f"{100 * value:.1f}" for value in values), f"{100 * sum(values) / len(values):.1f}"]
            for pages in gained.values():
                if (method, turn) not in pages[0]:
                    row.append("")
                    continue
                middle, half = pooled([page[method, turn] for page in pages], [len(of_page) for of_page in of_pages])
                # The files have base (or SFT) minus the method.
                row.append(f"{-100 * middle:+.1f} ({100 * (-middle - half):+.1f} to {100 * (-middle + half):+.1f})")
        cells.append(row)
    heads = [text for turn in _TURNS for text in (f"turn {turn}, by seed", "mean", "less base", "less SFT")]
    print(to_markdown(Table("pooled", "", ["", *heads], cells, (), [])))
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
