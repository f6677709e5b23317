"""The tables of offline training (`python -m cobalt.studies.offline_results`), from the folders of its runs.

They may stand in the same page as those of `cobalt.studies.results`, between marks of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.cli import run_script
from cobalt.errors import UserError
from cobalt.report.curves import read_metrics
from cobalt.report.published import published_offline_table
from cobalt.report.runs import Run, check_comparable, read_run
from cobalt.report.seed_tables import Cost, cost_table, pass_table, samples_table
from cobalt.report.tables import Table
from cobalt.rollout.evaluate_single import SampleScore, sample_score
from cobalt.studies import pocket
from cobalt.studies.equal_time import command_seconds, training_seconds
from cobalt.studies.flags import check_seeds
from cobalt.studies.methods import BASE, COBALT, FT_COBALT, Method
from cobalt.studies.offline_methods import (
    OFFLINE_METHODS,
    ROWS,
    WRITERS,
    OfflineFolders,
    OfflineMethod,
    Row,
    folders_of,
)
from cobalt.studies.page import kept, write_page
from cobalt.studies.results import collected, cost
from cobalt.trajectory_codec import read_trajectories

MODULE = "cobalt.studies.offline_results"


def offline_cost(at: OfflineFolders, method: OfflineMethod) -> Cost:
    """The cost of a row: its training, and the collection of Cobalt's trajectories where it is trained on them.

    The making of submissions does not count, because offline training takes those that are there.

    Raises:
        UserError: a step of one of the studies has not run.
    """
    run, steps = at.training(method), at.scale.steps
    examples, memory = 0, 0.0
    for number, metrics in read_metrics(run):
        if 0 < number <= steps:
            examples += round(metrics["training/responses"])
            memory = max(memory, metrics["perf/cpu_memory_used_gb"])
    tokens, tests = 0, 0
    preparing = command_seconds(at.own.folder, [at.own.step(method.groups.slug)])
    if method.groups.trajectories:
        preparing += command_seconds(at.reproduced.folder, [at.reproduced.step("ft_cobalt_collection")])
        tokens, tests = collected(at.trajectories)
    return Cost(steps, examples, training_seconds(run, steps) + preparing, preparing, tokens, tests, memory)


def divergence(at: OfflineFolders, method: OfflineMethod) -> float:
    """The last KL divergence that a run was validated with, in nats a token.

    Raises:
        UserError: the run was not validated.
    """
    run = at.training(method)
    found = [metrics["validation/kl"] for _, metrics in read_metrics(run) if "validation/kl" in metrics]
    if not found:
        raise UserError(f"{run} was not validated")
    return found[-1]


def _costs(seeds: Sequence[OfflineFolders], row: Row) -> dict[int, Cost]:
    return {at.own.seed: cost(at.reproduced, row) if isinstance(row, Method) else offline_cost(at, row) for at in seeds}


def tables_of(seeds: Sequence[OfflineFolders]) -> list[tuple[str, Table]]:
    """Every table, under its heading.

    Raises:
        UserError: a run is missing, or the runs are not on the same problems.
    """
    shown: tuple[Row, ...] = (BASE, *OFFLINE_METHODS, COBALT, FT_COBALT)
    runs: dict[str, dict[int, Run]] = {
        row.name: {at.own.seed: read_run(row.name, at.evaluation(row)) for at in seeds} for row in shown
    }
    for at in seeds:
        check_comparable([of_row[at.own.seed] for of_row in runs.values()])
    costs = {row.name: _costs(seeds, row) for row in shown if row is not BASE}
    extra = {"": ["examples", "seconds", "KL"], BASE.name: ["0", "0", "0.000"]}
    for row in shown[1:]:
        spent = costs[row.name].values()
        moved = [divergence(at, row) for at in seeds] if isinstance(row, OfflineMethod) else []
        extra[row.name] = [
            f"{sum(one.examples for one in spent) // len(spent):,}",
            f"{sum(one.seconds for one in spent) / len(spent):,.0f}",
            f"{sum(moved) / len(moved):.3f}" if moved else "n/a",
        ]
    caption = (
        "Offline training from the same seed models. Seconds are without the making of submissions, which took"
        f" {_submission_seconds(seeds):,.0f} s a seed; KL is that of the seed model from the policy, a token, on"
        " responses to other problems."
    )
    return [
        ("Offline RL", pass_table("offline", caption, runs, extra)),
        ("Offline RL: pass@k by difficulty", samples_table(_scores(seeds))),
        ("Offline RL: costs", cost_table("offline_costs", costs)),
        ("Offline RL: published", published_offline_table()),
    ]


def _submission_seconds(seeds: Sequence[OfflineFolders]) -> float:
    """Mean seconds in which the submissions of a seed were made and judged."""
    names = [[at.own.step(f"{writer.slug}_submissions") for writer in WRITERS] for at in seeds]
    folder = seeds[0].own.folder
    return sum(command_seconds(folder, of_seed) for of_seed in names) / len(seeds)


def _scores(seeds: Sequence[OfflineFolders]) -> Mapping[str, list[SampleScore]]:
    return {
        row.name: [
            sample_score(group) for at in seeds for group in read_trajectories(pocket.evaluation_file(at.samples(row)))
        ]
        for row in ROWS
    }


@dataclass(frozen=True)
class Arguments:
    """Write the tables of offline training from the folders of its runs."""

    study: tyro.conf.Positional[Path]
    """Folder of cobalt.studies.offline."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The markdown file; text outside its marks is kept. CSV files are written into a folder of its name."""
    reproduced: Path = Path("runs/reproduce")
    """Folder of cobalt.studies.reproduce."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds to show."""
    fast: bool = False
    """The studies are those of --fast."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code."""
    around = kept(arguments.output_file, MODULE)
    seeds = [
        folders_of(arguments.study, arguments.reproduced, seed, fast=arguments.fast)
        for seed in sorted(check_seeds(arguments.seeds))
    ]
    write_page(arguments.output_file, around, tables_of(seeds), {})
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
