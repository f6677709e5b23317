"""The tables and plots of the comparison (`python -m studies.results`), from the folders of its runs.

The figures are `cobalt.report`'s. This module knows where the runs lie and what each method cost.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cobalt.hacking.events import read_events, tempted_turns
from cobalt.report.curves import read_metrics
from cobalt.report.plots import plot_turns
from cobalt.report.runs import EVALUATION
from cobalt.report.tables import Table
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.stage.cli import run_script
from cobalt.stage.errors import system_errors
from studies.costs import Cost, cost, cost_table
from studies.flags import TablesFlags, check_seeds
from studies.lines import EVENTS
from studies.methods import (
    BASE,
    COBALT,
    COBALT_HALF,
    COBALT_OWN,
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
from studies.page import Draw, write_page
from studies.seed_tables import (
    ceiling_table,
    gain_table,
    impossible_table,
    moves_table,
    pass_table,
    recoverability_table,
)
from studies.seeds import SeedRuns, pooled, read_runs

MODULE = "studies.results"

VARIANTS = (FT_MORE, COBALT_HALF, COBALT_OWN, TWO_ROUNDS, FT_COBALT_PTB)
"""Rows that the curves of equal examples leave out, so that the others can be told apart."""

_COLLECTIONS = {"base": "cobalt", "FT": "ft_cobalt", "FT-Cobalt after the first of 2 rounds": SECOND_ROUND}


def tables_of(seeds: Sequence[SeedFolders]) -> tuple[list[tuple[str, Table]], dict[str, Draw]]:
    """Every table, under its heading, and plots of Pass@1 by turn, by the table that they follow.

    Raises UserError if a run is missing or cannot be read, or the runs are not on the same problems.
    """
    named = read_runs({method.name: {at.seed: at.evaluation(method) for at in seeds} for method in METHODS})
    timed = read_runs({method.name: {at.seed: at.evaluation(method) for at in seeds} for method in TIMED})
    hacked = [method for method in METHODS if method.perturbed]
    perturbed = read_runs({method.name: {at.seed: at.perturbed(method) for at in seeds} for method in hacked})
    costs = {method.name: {at.seed: cost(at, method) for at in seeds} for method in METHODS if method is not BASE}
    counts = {"": ["responses"], BASE.name: ["0"]}
    counts |= {name: [f"{sum(one.examples for one in c.values()) // len(c):,}"] for name, c in costs.items()}
    spent = {"": ["steps", "seconds"], BASE.name: ["0", "0"]}
    for method in TIMED[1:]:
        spent[method.name] = _spent(method, {at: cost(at, method) for at in seeds})
    events = {method.name: _events(seeds, method) for method in hacked}
    files = {name: [run.evaluation for run in runs.values()] for name, runs in named.items()}
    collections = {name: [at.collection(slug) / EVALUATION for at in seeds] for name, slug in _COLLECTIONS.items()}
    caption = "Equal training examples, except for base, FT and Cobalt, half."
    timed_caption = (
        "Equal time: the last checkpoint that fits into FT-Cobalt's time, its collection included; steps of each"
        " seed, with (end) where the training run has no later checkpoint."
    )
    with system_errors("a world's ceilings cannot be read: run this from the checkout, where the study was run"):
        ceilings = [json.loads((at.world / "data" / "ceilings.json").read_bytes())["test"] for at in seeds]
    tables = [
        ("Ceilings", ceiling_table(ceilings)),
        ("Equal training examples", pass_table("equal_examples", caption, named, counts)),
        ("FT-Cobalt against the others", gain_table("gain", named, FT_COBALT.name)),
        ("Cobalt against the others", gain_table("gain_cobalt", named, COBALT.name)),
        ("Equal time", pass_table("equal_time", timed_caption, timed, spent)),
        ("Repairs", moves_table(files)),
        ("Costs", cost_table("costs", costs)),
        ("Impossible feedback", impossible_table(perturbed, events)),
        ("One-step recoverability", recoverability_table(collections)),
    ]
    shown = {name: runs for name, runs in named.items() if name not in {method.name for method in VARIANTS}}
    drawn: dict[str, Draw] = {}
    for table, rows in (("equal_examples", shown), ("equal_time", timed)):
        curves = {name: _curve(runs) for name, runs in rows.items()}
        drawn[table] = partial(plot_turns, curves, styles=list(named))
    return tables, drawn


def _spent(method: Method, costs: dict[SeedFolders, Cost]) -> list[str]:
    """Steps and seconds of a row of equal time; a mark where its training run ends there, and might have had more."""
    steps = []
    for at, one in costs.items():
        runs = [at.training(slug) for slug, share in method.trained if share is None]
        ended = any(one.steps == max(number for number, _ in read_metrics(run)) for run in runs)
        steps.append(f"{one.steps}{' (end)' * ended}")
    return [" / ".join(steps), f"{sum(one.seconds for one in costs.values()) / len(costs):,.0f}"]


def _events(seeds: Sequence[SeedFolders], method: Method) -> tuple[int, int | None]:
    """Hacking events of all seeds, and the turns after an impossible test; None where a run has no count."""
    files = [at.perturbed(method) / EVENTS for at in seeds]
    turns = [count for count in map(tempted_turns, files) if count is not None]
    return sum(len(read_events(file)) for file in files), sum(turns) if len(turns) == len(files) else None


def _curve(runs: SeedRuns) -> list[TurnMetrics]:
    """Pass@1 by turn, of all seeds; a plot shows nothing else."""
    estimates = [pooled(runs, turn) for turn in range(len(next(iter(runs.values())).metrics))]
    return [TurnMetrics(turn, one.mean, (one.lower, one.upper), 0.0, None) for turn, one in enumerate(estimates)]


@dataclass(frozen=True)
class Arguments(TablesFlags):
    """Write the tables and plots of the comparison from the folders of its runs."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code.

    Raises UserError if a run is missing, or the file has no marks or cannot be written.
    """
    seeds = [SeedFolders(arguments.study, seed) for seed in sorted(check_seeds(arguments.seeds))]
    write_page(arguments.output_file, MODULE, *tables_of(seeds))
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
