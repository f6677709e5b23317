"""The tables and plots of the comparison (`python -m studies.results`), from the folders of its runs.

The figures are `cobalt.report`'s. This module knows where the runs lie and what each method cost.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.episode.record import read_trajectories
from cobalt.hacking.events import read_events, tempted_turns
from cobalt.report.comparison import check_comparable
from cobalt.report.curves import read_metrics
from cobalt.report.plots import plot_first_and_last, plot_turns
from cobalt.report.runs import Run, read_run
from cobalt.report.tables import Table
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.training.export import exported_step
from studies import pocket
from studies.equal_time import command_seconds, training_seconds
from studies.flags import check_seeds
from studies.methods import (
    BASE,
    COBALT,
    COBALT_HALF,
    COBALT_OWN,
    FAST,
    FT_COBALT,
    FT_COBALT_PTB,
    FT_MORE,
    FULL,
    ROUNDS,
    Method,
    SeedFolders,
    check_rounds,
    methods,
    round_slug,
    rounds_method,
)
from studies.page import Draw, kept, write_page
from studies.seed_tables import (
    Cost,
    ceiling_table,
    cost_table,
    gain_table,
    impossible_table,
    moves_table,
    pass_table,
    recoverability_table,
)
from studies.seeds import SeedRuns, pooled

MODULE = "studies.results"

VARIANTS = (FT_MORE, COBALT_HALF, COBALT_OWN, FT_COBALT_PTB)
"""Rows that the curves by turn leave out, as those with more rounds, so that the others can be told apart."""


def cost(at: SeedFolders, method: Method) -> Cost:
    """The cost of a method's policy of one seed. Raises UserError if a step of the study has not run."""
    scale = FAST if at.fast else FULL
    steps = prompts = examples = 0
    seconds = tokens = tests = memory = 0.0
    for slug, share in method.trained:
        length = exported_step(at.model(method)) if share is None else int(share * scale.steps)
        run = at.training(slug)
        prompts_of_step, samples_of_prompt = batch_of(run)
        samples = prompts_of_step * samples_of_prompt
        steps += length
        prompts += length * prompts_of_step
        seconds += training_seconds(run, length)
        for number, metrics in read_metrics(run):
            if 0 < number <= length:
                generated = metrics.get("reward/generated_tokens", metrics["response_length/mean"])
                examples += round(samples * metrics.get("reward/turns", 1.0))
                tokens += samples * generated
                tests += samples * metrics["reward/judged_tests"]
                memory = max(memory, metrics["actor/perf/cpu_memory_used_gb"])
    preparing = command_seconds(at.folder, [at.step(name) for name in method.prepared])
    for name in method.prepared:
        if name.endswith("_collection"):
            generated, judged = collected(pocket.evaluation_file(at.collection(name.removesuffix("_collection"))))
            tokens += generated
            tests += judged
    return Cost(steps, prompts, examples, seconds + preparing, preparing, tokens, tests, memory)


def batch_of(run: Path) -> tuple[int, int]:
    """Prompts of a step of a training run (offline: groups), and samples of a prompt.

    Raises UserError if its configuration cannot be read.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    try:
        config = OmegaConf.load(run / "config.yaml")
    except (OSError, YAMLError) as error:
        raise UserError(f"{run / 'config.yaml'} cannot be read: {' '.join(str(error).split())[:120]}") from None
    return int(config.data.train_batch_size), int(OmegaConf.select(config, "actor_rollout_ref.rollout.n", default=1))


def collected(evaluation: Path) -> tuple[int, int]:
    """Generated tokens and judged tests of a collection of trajectories."""
    tokens = tests = 0
    for group in read_trajectories(evaluation):
        for trajectory in group.trajectories:
            for turn in trajectory.turns:
                tokens += turn.completion_tokens or 0
                tests += len(turn.public_result.verdicts) if turn.public_result else 0
                tests += len(turn.hidden_verdicts or ())
    return tokens, tests


class _Results:
    """The runs of the study, read once."""

    def __init__(self, folder: Path, seeds: Sequence[int], rounds: Sequence[int], *, fast: bool) -> None:
        self.rounds, self.methods = rounds, methods(rounds)
        self.at = {seed: SeedFolders(folder, seed, fast) for seed in seeds}
        for seed, at in self.at.items():
            for method in self.methods:
                if not pocket.evaluation_file(at.evaluation(method)).exists():
                    raise UserError(
                        f"{folder} has no evaluation of {method.name} for seed {seed}: run"
                        f" python -m studies.reproduce {folder} --seeds {seed}{' --fast' * fast}"
                    )
        self.runs: dict[Method, dict[int, Run]] = {
            method: {seed: read_run(method.name, at.evaluation(method)) for seed, at in self.at.items()}
            for method in self.methods
        }
        self.perturbed = {
            method: {seed: read_run(method.name, at.perturbed(method)) for seed, at in self.at.items()}
            for method in self.methods
            if method.perturbed
        }
        for seed in seeds:
            check_comparable([runs[seed] for runs in self.runs.values()])
            check_comparable([runs[seed] for runs in self.perturbed.values()])
        self.costs = {
            method: {seed: cost(at, method) for seed, at in self.at.items()}
            for method in self.methods
            if method is not BASE
        }

    def view(self, name: str) -> list[Method]:
        """The rows of a view."""
        return [method for method in self.methods if method.view in (name, "both")]

    def tables(self) -> list[tuple[str, Table]]:
        """Every table, under its heading."""
        examples, time = self.view("examples"), self.view("time")
        named = {method.name: self.runs[method] for method in examples}
        timed = {method.name: self.runs[method] for method in time}
        counts = {"": ["responses"], BASE.name: ["0"]}
        for method in examples:
            if method in self.costs:
                of_method = self.costs[method].values()
                counts[method.name] = [f"{sum(one.examples for one in of_method) // len(of_method):,}"]
        spent = {"": ["steps", "seconds"]}
        for method in time:
            by_seed = self.costs.get(method, {})
            steps = " / ".join(
                f"{one.steps}{' (end)' if self._is_end(method, seed, one.steps) else ''}"
                for seed, one in by_seed.items()
            )
            seconds = sum(one.seconds for one in by_seed.values()) / len(by_seed) if by_seed else 0.0
            spent[method.name] = [steps or "0", f"{seconds:,.0f}"]
        files = {m.name: [run.evaluation for run in self.runs[m].values()] for m in examples}
        collections = {
            name: [pocket.evaluation_file(at.collection(slug)) for at in self.at.values()]
            for name, slug in (
                ("base", "cobalt"),
                ("FT", "ft_cobalt"),
                *((f"FT-Cobalt after the first of {n} rounds", round_slug(n, 2)) for n in self.rounds),
            )
        }
        return [
            ("Ceilings", ceiling_table([_ceilings(at.world) for at in self.at.values()])),
            (
                "Equal training examples",
                pass_table(
                    "equal_examples", "Equal training examples, except for base, FT and Cobalt, half.", named, counts
                ),
            ),
            ("FT-Cobalt against the others", gain_table("gain", named, FT_COBALT.name)),
            ("Cobalt against the others", gain_table("gain_cobalt", named, COBALT.name)),
            (
                "Equal time",
                pass_table(
                    "equal_time",
                    "Equal time: the last checkpoint that fits into FT-Cobalt's time, its collection included; steps of"
                    " each seed, with (end) where the training run has no later checkpoint.",
                    timed,
                    spent,
                ),
            ),
            ("Repairs", moves_table(files)),
            ("Costs", cost_table("costs", {m.name: self.costs[m] for m in examples if m in self.costs})),
            (
                "Impossible feedback",
                impossible_table(
                    {m.name: runs for m, runs in self.perturbed.items()},
                    {m.name: self._events(m) for m in self.perturbed},
                ),
            ),
            ("One-step recoverability", recoverability_table(collections)),
        ]

    def _is_end(self, method: Method, seed: int, step: int) -> bool:
        """Whether a row of equal time is the last checkpoint of its training run, so that it might have had more."""
        return any(
            share is None and step == max(number for number, _ in read_metrics(self.at[seed].training(slug)))
            for slug, share in method.trained
        )

    def _events(self, method: Method) -> tuple[int, int | None]:
        """Hacking events of all seeds, and the turns after an impossible test; None where a run has no count."""
        files = [pocket.events_file(at.perturbed(method)) for at in self.at.values()]
        turns = [tempted_turns(file) for file in files]
        known = [count for count in turns if count is not None]
        return sum(len(read_events(file)) for file in files), sum(known) if len(known) == len(turns) else None

    def plots(self) -> dict[str, list[Draw]]:
        """The plots, by the table that they follow."""
        names = list(dict.fromkeys(method.name for method in self.methods))
        variants = (*VARIANTS, *map(rounds_method, self.rounds))
        drawn: dict[str, list[Draw]] = {}
        for view in ("examples", "time"):
            rows = self.view(view)
            curves = {method.name: _curve(self.runs[method]) for method in rows if method not in variants}
            drawn[f"equal_{view}"] = [
                partial(_draw_first_and_last, {method.name: self.runs[method] for method in rows}),
                partial(plot_turns, curves, styles=names),
            ]
        return drawn


def _ceilings(world: Path) -> Any:
    path = world / "data" / "ceilings.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["test"]
    except (OSError, ValueError, KeyError):
        raise UserError(f"{path} cannot be read: run this from the checkout, where the study was run") from None


def _draw_first_and_last(runs: Mapping[str, SeedRuns], path: Path) -> None:
    last = max(len(run.metrics) for run in next(iter(runs.values())).values()) - 1
    shares, intervals = {}, {}
    for name, of in runs.items():
        first, final = pooled(of, 0), pooled(of, last)
        intervals[name] = (first.lower, first.upper), (final.lower, final.upper)
        shares[name] = (
            [run.metrics[0].pass_at_1 for run in of.values()],
            [run.metrics[last].pass_at_1 for run in of.values()],
        )
    plot_first_and_last(shares, intervals, path, last=last)


def _curve(runs: SeedRuns) -> list[TurnMetrics]:
    first = next(iter(runs.values()))
    rows: list[TurnMetrics] = []
    for turn in range(len(first.metrics)):
        estimate = pooled(runs, turn)
        rate = sum(run.metrics[turn].pass_rate for run in runs.values()) / len(runs)
        start = rows[0].pass_at_1 if rows else estimate.mean
        relative = estimate.mean / start - 1 if start else None
        rows.append(TurnMetrics(turn, estimate.mean, (estimate.lower, estimate.upper), rate, relative))
    return rows


def write_results(
    folder: Path, seeds: Sequence[int], output: Path, *, fast: bool, rounds: Sequence[int] = ROUNDS
) -> None:
    """Write the tables into a markdown file, and CSV files and plots into the folder beside it; see `Arguments`.

    Raises UserError if a run is missing, or the file has no marks or cannot be written.
    """
    around = kept(output, MODULE)
    results = _Results(folder, seeds, rounds, fast=fast)
    write_page(output, around, results.tables(), results.plots())


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
    rounds: tuple[int, ...] = ROUNDS
    """As given to the study."""


def main(arguments: Arguments) -> int:
    """Write, and return the exit code."""
    rounds = check_rounds(arguments.rounds, FAST if arguments.fast else FULL)
    seeds = sorted(check_seeds(arguments.seeds))
    write_results(arguments.study, seeds, arguments.output_file, fast=arguments.fast, rounds=rounds)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
