"""The tables and plots of the comparison (`python -m studies.results`), from the folders of its runs.

The figures are `cobalt.report`'s. This module knows where the runs lie and what each method cost.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.hacking.events import read_events, tempted_turns
from cobalt.report.comparison import check_comparable
from cobalt.report.curves import read_metrics
from cobalt.report.plots import plot_turns
from cobalt.report.runs import EVALUATION, read_run
from cobalt.report.tables import Table
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies.costs import cost, cost_table
from studies.flags import check_seeds
from studies.lines import EVENTS
from studies.methods import (
    BASE,
    COBALT,
    COBALT_HALF,
    COBALT_OWN,
    EQUAL_TIME,
    FT_COBALT,
    FT_COBALT_PTB,
    FT_MORE,
    METHODS,
    SECOND_ROUND,
    TIMED,
    TWO_ROUNDS,
    Method,
    SeedFolders,
)
from studies.page import Draw, text_around, write_page
from studies.seed_tables import (
    ceiling_table,
    gain_table,
    impossible_table,
    moves_table,
    pass_table,
    recoverability_table,
)
from studies.seeds import SeedRuns, pooled

MODULE = "studies.results"

VARIANTS = (FT_MORE, COBALT_HALF, COBALT_OWN, TWO_ROUNDS, FT_COBALT_PTB)
"""Rows that the curves by turn leave out, so that the others can be told apart."""


class _Results:
    """The runs of the study, read once."""

    def __init__(self, folder: Path, seeds: Sequence[int], *, fast: bool) -> None:
        self.at = {seed: SeedFolders(folder, seed, fast) for seed in seeds}
        rows = (*METHODS, *EQUAL_TIME)
        for seed, at in self.at.items():
            for method in rows:
                if not (at.evaluation(method) / EVALUATION).exists():
                    raise UserError(
                        f"{folder} has no evaluation of {method.name} for seed {seed}: run"
                        f" python -m studies.reproduce {folder} --seeds {seed}{' --fast' * fast}"
                    )
        self.runs = {m: {s: read_run(m.name, at.evaluation(m)) for s, at in self.at.items()} for m in rows}
        self.perturbed = {
            m: {s: read_run(m.name, at.perturbed(m)) for s, at in self.at.items()} for m in METHODS if m.perturbed
        }
        for seed in seeds:
            check_comparable([runs[seed] for runs in self.runs.values()])
            check_comparable([runs[seed] for runs in self.perturbed.values()])
        self.costs = {m: {s: cost(at, m) for s, at in self.at.items()} for m in rows if m is not BASE}

    def tables(self) -> list[tuple[str, Table]]:
        """Every table, under its heading."""
        named = {method.name: self.runs[method] for method in METHODS}
        timed = {method.name: self.runs[method] for method in TIMED}
        costs = {method.name: self.costs[method] for method in METHODS if method is not BASE}
        counts = {"": ["responses"], BASE.name: ["0"]}
        for name, of_method in costs.items():
            counts[name] = [f"{sum(one.examples for one in of_method.values()) // len(of_method):,}"]
        spent = {"": ["steps", "seconds"], BASE.name: ["0", "0"]}
        for method in TIMED[1:]:
            by_seed = self.costs[method]
            steps = " / ".join(f"{one.steps}{self._end(method, seed, one.steps)}" for seed, one in by_seed.items())
            spent[method.name] = [steps, f"{sum(one.seconds for one in by_seed.values()) / len(by_seed):,.0f}"]
        files = {name: [run.evaluation for run in runs.values()] for name, runs in named.items()}
        sources = {"base": "cobalt", "FT": "ft_cobalt", "FT-Cobalt after the first of 2 rounds": SECOND_ROUND}
        collections = {name: [at.collected(slug) for at in self.at.values()] for name, slug in sources.items()}
        perturbed = {method.name: runs for method, runs in self.perturbed.items()}
        caption = "Equal training examples, except for base, FT and Cobalt, half."
        timed_caption = (
            "Equal time: the last checkpoint that fits into FT-Cobalt's time, its collection included; steps of each"
            " seed, with (end) where the training run has no later checkpoint."
        )
        return [
            ("Ceilings", ceiling_table([_ceilings(at.world) for at in self.at.values()])),
            ("Equal training examples", pass_table("equal_examples", caption, named, counts)),
            ("FT-Cobalt against the others", gain_table("gain", named, FT_COBALT.name)),
            ("Cobalt against the others", gain_table("gain_cobalt", named, COBALT.name)),
            ("Equal time", pass_table("equal_time", timed_caption, timed, spent)),
            ("Repairs", moves_table(files)),
            ("Costs", cost_table("costs", costs)),
            ("Impossible feedback", impossible_table(perturbed, {m.name: self._events(m) for m in self.perturbed})),
            ("One-step recoverability", recoverability_table(collections)),
        ]

    def _end(self, method: Method, seed: int, step: int) -> str:
        """A mark if a row of equal time is the last step of its training run, so that it might have had more."""
        runs = [self.at[seed].training(slug) for slug, share in method.trained if share is None]
        return " (end)" if any(step == max(number for number, _ in read_metrics(run)) for run in runs) else ""

    def _events(self, method: Method) -> tuple[int, int | None]:
        """Hacking events of all seeds, and the turns after an impossible test; None where a run has no count."""
        files = [at.perturbed(method) / EVENTS for at in self.at.values()]
        turns = [count for count in map(tempted_turns, files) if count is not None]
        return sum(len(read_events(file)) for file in files), sum(turns) if len(turns) == len(files) else None

    def plots(self) -> dict[str, Draw]:
        """Pass@1 by turn, by the table that it follows."""
        drawn: dict[str, Draw] = {}
        for name, rows in (("equal_examples", METHODS), ("equal_time", TIMED)):
            curves = {method.name: _curve(self.runs[method]) for method in rows if method not in VARIANTS}
            drawn[name] = partial(plot_turns, curves, styles=[method.name for method in METHODS])
        return drawn


def _ceilings(world: Path) -> Any:
    path = world / "data" / "ceilings.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["test"]
    except (OSError, ValueError, KeyError):
        raise UserError(f"{path} cannot be read: run this from the checkout, where the study was run") from None


def _curve(runs: SeedRuns) -> list[TurnMetrics]:
    rows: list[TurnMetrics] = []
    for turn in range(len(next(iter(runs.values())).metrics)):
        estimate = pooled(runs, turn)
        rate = sum(run.metrics[turn].pass_rate for run in runs.values()) / len(runs)
        start = rows[0].pass_at_1 if rows else estimate.mean
        relative = estimate.mean / start - 1 if start else None
        rows.append(TurnMetrics(turn, estimate.mean, (estimate.lower, estimate.upper), rate, relative))
    return rows


@dataclass(frozen=True)
class Arguments:
    """Write the tables and plots of the comparison from the folders of its runs."""

    study: tyro.conf.Positional[Path]
    """Folder of the study."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The markdown file; text outside its marks is kept. CSV files and plots are written into a folder of its name."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds to show."""
    fast: bool = False
    """The study is one of --fast."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code.

    Raises UserError if a run is missing, or the file has no marks or cannot be written.
    """
    around = text_around(arguments.output_file, MODULE)
    results = _Results(arguments.study, sorted(check_seeds(arguments.seeds)), fast=arguments.fast)
    write_page(arguments.output_file, around, results.tables(), results.plots())
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
