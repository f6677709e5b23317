"""The tables of offline training (`python -m studies.offline_results`), from the folders of its runs.

They may stand in the same page as those of `studies.results`, between marks of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated

import tyro

from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.episode.record import read_trajectories
from cobalt.report.comparison import check_comparable
from cobalt.report.curves import read_metrics
from cobalt.report.published import published_offline_table
from cobalt.report.runs import EVALUATION, Run, read_run
from cobalt.report.tables import Table
from cobalt.rollout.evaluate_single import count_distinct
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from studies.costs import Cost, batch_of, collected, command_seconds, cost, cost_table, training_seconds
from studies.divergence import read_kl
from studies.flags import check_seeds
from studies.methods import BASE, COBALT
from studies.offline_methods import (
    ROWS,
    SFT,
    SHOWN,
    WRITERS,
    OfflineFolders,
    OfflineMethod,
    folders_of,
)
from studies.page import text_around, write_page
from studies.seed_tables import gain_table, pass_table, samples_table

MODULE = "studies.offline_results"


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What a training run of a row was.

    Attributes:
        cost: Its training, the making of its groups, and the collection of Cobalt's trajectories where it is trained on
            them. The making of submissions does not count, because offline training takes those that are there.
        distinct: How many different responses it was trained on.
        epochs: How often it saw each of them.
        divergence: The last KL(start || policy) that it was validated with, in nats a token.
    """

    cost: Cost
    distinct: int
    epochs: float
    divergence: float


def offline_run(at: OfflineFolders, method: OfflineMethod) -> OfflineRun:
    """Read the training run of a row.

    Raises UserError if a step of one of the studies has not run, or the run was not validated.
    """
    run = at.training(method)
    trained = [metrics for number, metrics in read_metrics(run) if number > 0]
    divergences = [metrics["validation/kl"] for metrics in trained if "validation/kl" in metrics]
    if not divergences:
        raise UserError(f"{run} was not validated")
    examples = round(sum(metrics["training/responses"] for metrics in trained))
    memory = max(metrics.get("perf/cpu_memory_used_gb", 0.0) for metrics in trained)
    preparing = command_seconds(at.own.folder, [at.own.step(method.groups.slug)])
    tokens, tests = 0, 0
    if not method.groups.writers:
        preparing += command_seconds(at.reproduced.folder, [at.reproduced.step("ft_cobalt_collection")])
        tokens, tests = collected(at.trajectories)
    accepted_alone = method.estimator == "sft"
    distinct = sum(
        response.status is Status.ACCEPTED or not accepted_alone
        for group in read_groups(at.own.data(method.groups.slug) / "train.jsonl")
        for response in group.responses
    )
    seconds = training_seconds(run, len(trained)) + preparing
    cost = Cost(len(trained), len(trained) * batch_of(run)[0], examples, seconds, preparing, tokens, tests, memory)
    return OfflineRun(cost, distinct, examples / distinct, divergences[-1])


def tables_of(seeds: Sequence[OfflineFolders]) -> list[tuple[str, Table]]:
    """Every table, under its heading.

    Raises UserError if a run is missing or cannot be read, or the runs are not on the same problems.
    """
    runs: dict[str, dict[int, Run]] = {
        row.name: {at.own.seed: read_run(row.name, at.evaluation(row)) for at in seeds} for row in SHOWN
    }
    for at in seeds:
        check_comparable([of_row[at.own.seed] for of_row in runs.values()])
    scores = {
        row.name: [count_distinct(group) for at in seeds for group in read_trajectories(at.samples(row) / EVALUATION)]
        for row in ROWS
    }
    costs: dict[str, dict[int, Cost]] = {}
    extra = {"": ["examples", "distinct", "epochs", "KL"], BASE.name: ["0", "0", "0", "0.000"]}
    for row in SHOWN[1:]:
        if isinstance(row, OfflineMethod):
            trained = [offline_run(at, row) for at in seeds]
            costs[row.name] = {at.own.seed: one.cost for at, one in zip(seeds, trained, strict=True)}
            data = [
                f"{mean(one.distinct for one in trained):,.0f}",
                f"{mean(one.epochs for one in trained):.1f}",
                f"{mean(one.divergence for one in trained):.3f}",
            ]
        else:
            costs[row.name] = {at.own.seed: cost(at.reproduced, row) for at in seeds}
            data = ["", "", f"{mean(read_kl(at.divergence(row)) for at in seeds):.3f}"]
        extra[row.name] = [f"{mean(one.examples for one in costs[row.name].values()):,.0f}", *data]
    reached = pass_table("offline", _caption(seeds), runs, extra)
    data_rows = [(*values, extra[str(values[0])][-1]) for values in reached.data_rows]
    return [
        ("Offline RL", replace(reached, data_header=(*reached.data_header, "kl"), data_rows=data_rows)),
        *(
            (f"Offline RL: {row.name} against the others", gain_table(f"offline_gain_{row.slug}", runs, row.name))
            for row in (BASE, SFT, COBALT)
        ),
        ("Offline RL: pass@k by difficulty", samples_table(scores)),
        ("Offline RL: costs", cost_table("offline_costs", costs)),
        ("Offline RL: published", published_offline_table()),
    ]


def _caption(seeds: Sequence[OfflineFolders]) -> str:
    names = [at.own.step(f"{writer.slug}_submissions") for at in seeds for writer in WRITERS]
    submitted = command_seconds(seeds[0].own.folder, names)
    trained = [cost(at.reproduced, writer).seconds for at in seeds for writer in WRITERS if writer is not BASE]
    return (
        "Offline training beside Cobalt and FT-Cobalt, which generate in training. Submissions were written by"
        f" {', '.join(writer.name for writer in WRITERS)}: to sample and judge them took"
        f" {submitted / len(seeds):,.0f} s a seed, and to train these writers"
        f" {sum(trained) / len(seeds):,.0f} s; neither is in the costs of the rows. Examples are responses trained on,"
        " distinct ones are counted once. KL is KL(seed model || policy) in nats a token, estimated"
        " on the seed model's own programs for problems that rows on submissions leave out, each different one once."
    )


@dataclass(frozen=True)
class Arguments:
    """Write the tables of offline training from the folders of its runs."""

    study: tyro.conf.Positional[Path]
    """Folder of studies.offline."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The markdown file; text outside its marks is kept. CSV files are written into a folder of its name."""
    reproduced: Path = Path("runs/reproduce")
    """Folder of studies.reproduce."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The seeds to show."""
    fast: bool = False
    """The studies are those of --fast."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code."""
    around = text_around(arguments.output_file, MODULE)
    seeds = [
        folders_of(arguments.study, arguments.reproduced, seed, fast=arguments.fast)
        for seed in sorted(check_seeds(arguments.seeds))
    ]
    write_page(arguments.output_file, around, tables_of(seeds), {})
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
