"""The tables of offline training (`python -m studies.offline_results`), from the folders of its runs.

They may stand in the same page as those of `studies.results`, between marks of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from json import loads
from pathlib import Path
from statistics import mean

from cobalt.datasets.offline.groups import Status, read_groups
from cobalt.episode.record import read_trajectories
from cobalt.report.curves import read_metrics
from cobalt.report.published import published_offline_table
from cobalt.report.runs import EVALUATION
from cobalt.report.tables import Table
from cobalt.rollout.evaluate_single import count_distinct
from cobalt.stage.cli import run_script
from cobalt.stage.errors import system_errors
from studies.costs import Cost, batch_of, collected, command_seconds, cost, cost_table, training_seconds
from studies.flags import TablesFlags, check_seeds
from studies.methods import BASE, COBALT
from studies.offline import ROWS, SFT, SHOWN, WRITERS, OfflineFolders, OfflineMethod
from studies.page import write_page
from studies.seed_tables import gain_table, pass_table, samples_table
from studies.seeds import read_runs

MODULE = "studies.offline_results"


def offline_run(at: OfflineFolders, method: OfflineMethod) -> tuple[Cost, list[float]]:
    """What a training run of a row took and was.

    The cost is that of its training, the making of its groups, and the collection of Cobalt's trajectories where it is
    trained on them. The making of submissions does not count, because offline training takes those that are there.

    Returns:
        The cost; how many different responses it was trained on, how often it saw each of them, and the last
        KL(start || policy) that it was validated with, in nats a token.

    Raises UserError if a step of one of the studies has not run.
    """
    run, groups = at.training(method.slug), at.data(method.groups.slug) / "train.jsonl"
    trained = [metrics for number, metrics in read_metrics(run) if number > 0]
    *_, divergence = (metrics["validation/kl"] for metrics in trained if "validation/kl" in metrics)
    examples = round(sum(metrics["training/responses"] for metrics in trained))
    memory = max(metrics.get("perf/cpu_memory_used_gb", 0.0) for metrics in trained)
    preparing = command_seconds(at.folder, [at.step(method.groups.slug)])
    tokens, tests = 0, 0
    if not method.groups.writers:
        preparing += command_seconds(at.made_in, [at.step("ft_cobalt_collection")])
        tokens, tests = collected(at.trajectories)
    statuses = [response.status for group in read_groups(groups) for response in group.responses]
    distinct = statuses.count(Status.ACCEPTED) if method.estimator == "sft" else len(statuses)
    seconds = training_seconds(run, len(trained)) + preparing
    cost = Cost(len(trained), len(trained) * batch_of(run)[0], examples, seconds, preparing, tokens, tests, memory)
    return cost, [distinct, examples / distinct, divergence]


def tables_of(seeds: Sequence[OfflineFolders]) -> list[tuple[str, Table]]:
    """Every table, under its heading.

    Raises UserError if a run is missing or cannot be read, or the runs are not on the same problems.
    """
    runs = read_runs({row.name: {at.seed: at.tested(row) for at in seeds} for row in SHOWN})
    scores = {
        row.name: [count_distinct(group) for at in seeds for group in read_trajectories(at.samples(row) / EVALUATION)]
        for row in ROWS
    }
    costs: dict[str, dict[int, Cost]] = {}
    extra = {"": ["examples", "distinct", "epochs", "KL"], BASE.name: ["0", "0", "0", "0.000"]}
    for row in SHOWN[1:]:
        if isinstance(row, OfflineMethod):
            trained = {at.seed: offline_run(at, row) for at in seeds}
            costs[row.name] = {seed: cost for seed, (cost, _) in trained.items()}
            distinct, epochs, kl = map(mean, zip(*(figures for _, figures in trained.values()), strict=True))
            data = [f"{distinct:,.0f}", f"{epochs:.1f}"]
        else:
            costs[row.name] = {at.seed: cost(at.reproduced, row) for at in seeds}
            with system_errors(f"the divergence of {row.name} cannot be read: run studies.offline to its end"):
                data, kl = ["", ""], mean(loads(at.divergence(row).read_bytes())["kl"] for at in seeds)
        examples = mean(one.examples for one in costs[row.name].values())
        extra[row.name] = [f"{examples:,.0f}", *data, f"{kl:.3f}"]
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
    names = [at.step(f"{writer.slug}_submissions") for at in seeds for writer in WRITERS]
    submitted = command_seconds(seeds[0].folder, names)
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
class Arguments(TablesFlags):
    """Write the tables of offline training from the folders of its runs."""

    reproduced: Path = Path("runs/reproduce")
    """Folder of studies.reproduce."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code."""
    seeds = [
        OfflineFolders(arguments.study, seed, arguments.reproduced) for seed in sorted(check_seeds(arguments.seeds))
    ]
    write_page(arguments.output_file, MODULE, tables_of(seeds))
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
