"""One table of pages whose seeds ran on different machines.

    python -m studies.pooled_pages docs/RESULTS docs/RESULTS_seed2

It has Pass@1 of every seed, the mean, the gain over base and SFT, and the KL divergence from the seed model. The
folders are those beside pages of studies.offline_results. Each page counts with the number of its seeds. The worlds of
the seeds are independent, so the variance of the mean is the sum of the pages' own, each from the width of its interval
(which is 3.92 standard deviations of a normal distribution). "Over runs" is Student's interval of the seeds' own gains,
with "cannot tell" where it or the interval over problems holds zero.
"""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from cobalt.report.tables import Table, to_markdown
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies.seed_tables import gain_cells
from studies.seeds import Estimate, over_runs

_TURNS = (0, 8)


@dataclass(frozen=True)
class Arguments:
    """Pool the tables of several pages."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of CSV files."""


Row = dict[str, str]
Rows = dict[tuple[str, int], Row]


def read(file: Path) -> Rows:
    """The rows of a CSV file by method and turn.

    Raises UserError if the file cannot be read, or is not one of studies.offline_results.
    """
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return {(row["method"], int(row["turn"])): row for row in csv.DictReader(lines)}
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (KeyError, ValueError):
        raise UserError(
            f"{file} has no columns 'method' and 'turn': name the folder beside a page of results"
        ) from None


def by_seed(row: Row) -> list[float]:
    """Pass@1 of each seed."""
    return [float(value) for name, value in row.items() if name.startswith("seed_")]


def pooled(rows: Sequence[Row], weights: Sequence[int]) -> tuple[float, float]:
    """A difference over all seeds, and half the width of its 95 % interval."""
    shares = [weight / sum(weights) for weight in weights]
    middle = sum(share * float(row["difference"]) for share, row in zip(shares, rows, strict=True))
    halves = [(float(row["upper"]) - float(row["lower"])) / 2 for row in rows]
    return middle, math.hypot(*(share * half for share, half in zip(shares, halves, strict=True)))


def pass_table(reached: Sequence[Rows], gained: Mapping[str, Sequence[Rows]]) -> Table:
    """Pass@1 of each seed, the mean, and the gains over problems and over runs, at the first and the last turn; KL.

    Args:
        reached: Pass@1 of each page.
        gained: By name of a row, its differences to the others, of each page.
    """
    cells = []
    for method in dict.fromkeys(method for method, _ in reached[0]):
        row = [method]
        for turn in _TURNS:
            of_pages = [by_seed(page[method, turn]) for page in reached]
            values = [value for of_page in of_pages for value in of_page]
            row += [" / ".join(f"{100 * value:.1f}" for value in values), f"{100 * sum(values) / len(values):.1f}"]
            for other, pages in gained.items():
                if (method, turn) not in pages[0]:  # the row that the others are compared with
                    row += ["", ""]
                    continue
                less, half = pooled([page[method, turn] for page in pages], list(map(len, of_pages)))
                gain = Estimate(-less, -less - half, half - less)  # the files have base (or SFT) minus the method
                others = [value for page in reached for value in by_seed(page[other, turn])]
                runs = over_runs([value - base for value, base in zip(values, others, strict=True)])
                row.append(f"{100 * gain.mean:+.1f} ({100 * gain.lower:+.1f} to {100 * gain.upper:+.1f})")
                row.append(gain_cells(gain, runs)[1])
        cells.append([*row, *divergence([page[method, _TURNS[0]] for page in reached])])
    of_turn = ["mean", *(text for other in gained for text in (f"less {other}", "over runs"))]
    heads = [text for turn in _TURNS for text in (f"turn {turn}, by seed", *of_turn)]
    return Table("pooled", "", ["", *heads, "KL, by page", "mean KL"], cells, (), [])


def divergence(rows: Sequence[Row]) -> tuple[str, str]:
    """KL(seed model || policy) of each page, in nats a token, and its mean over the seeds; "" where it is not measured.

    Raises UserError if the rows have no such column.
    """
    if not all("kl" in row for row in rows):
        raise UserError("offline.csv has no column 'kl': name folders of studies.offline_results")
    measured, seeds = [row["kl"] for row in rows], [len(by_seed(row)) for row in rows]
    if not all(measured):
        return "not measured", ""
    mean = sum(number * float(one) for number, one in zip(seeds, measured, strict=True)) / sum(seeds)
    return " / ".join(measured), f"{mean:.3f}"


def main(arguments: Arguments) -> int:
    """Print the table."""
    reached = [read(folder / "offline.csv") for folder in arguments.folders]
    gained = {
        row: [read(folder / f"offline_gain_{row.lower()}.csv") for folder in arguments.folders]
        for row in ("base", "SFT")
    }
    sys.stdout.write(to_markdown(pass_table(reached, gained)) + "\n")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
