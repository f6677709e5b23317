"""The tables and plots of the comparison (`python -m cobalt.studies.results`), from the folders of its runs.

The figures are `cobalt.report`'s. This module knows where the runs lie and what each method cost. The tables are
written between two marks of a markdown file, whose other text is kept; CSV files and plots lie in a folder beside it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.cli import run_script
from cobalt.errors import UserError
from cobalt.hacking.events import read_events, tempted_turns
from cobalt.report.curves import read_metrics
from cobalt.report.plots import plot_turns
from cobalt.report.published import published_offline_table
from cobalt.report.runs import Run, check_comparable, read_run
from cobalt.report.seed_tables import (
    Cost,
    ceiling_table,
    cost_table,
    gain_table,
    impossible_table,
    moves_table,
    pass_table,
    recoverability_table,
    samples_table,
)
from cobalt.report.seeds import SeedRuns, pooled
from cobalt.report.tables import Table, to_csv, to_markdown
from cobalt.rollout.evaluate import TurnMetrics
from cobalt.rollout.evaluate_single import sample_score
from cobalt.studies import pocket
from cobalt.studies.equal_time import command_seconds, training_seconds
from cobalt.studies.methods import (
    BASE,
    COBALT,
    FAST,
    FT_COBALT,
    FULL,
    METHODS,
    OFFLINE_METHODS,
    Method,
    SeedFolders,
)
from cobalt.studies.offline_plan import SAMPLED
from cobalt.training.export import exported_step
from cobalt.trajectory_codec import read_trajectories

BEGIN, END = "<!-- begin: cobalt.studies.results -->", "<!-- end: cobalt.studies.results -->"


def cost(at: SeedFolders, method: Method) -> Cost:
    """The cost of a method's policy of one seed.

    Raises:
        UserError: a step of the study has not run.
    """
    scale = FAST if at.fast else FULL
    steps, examples, seconds, tokens, tests, memory = 0, 0, 0.0, 0.0, 0.0, 0.0
    for slug, share in method.trained:
        length = exported_step(at.model(method)) if share is None else _length(scale.steps, share, slug)
        run = at.training(slug)
        steps += length
        seconds += training_seconds(run, length)
        if method.view == "offline":
            for number, metrics in read_metrics(run):
                if 0 < number <= length:
                    examples += round(metrics["training/responses"])
                    memory = max(memory, metrics["perf/cpu_memory_used_gb"])
            continue
        samples = _samples(run)
        for number, metrics in read_metrics(run):
            if 0 < number <= length:
                generated = metrics.get("reward/generated_tokens", metrics["response_length/mean"])
                examples += round(samples * metrics.get("reward/turns", 1.0))
                tokens += samples * generated
                tests += samples * metrics["reward/judged_tests"]
                memory = max(memory, metrics["actor/perf/cpu_memory_used_gb"])
    collecting = 0.0
    for slug in method.collected:
        # Offline training takes the trajectories as they are: nothing is cut or written as rows for veRL.
        parts = ("collection",) if method.view == "offline" else ("collection", "prompts", "rows")
        names = [at.step(f"{slug}_{part}") for part in parts]
        collecting += command_seconds(at.folder, names)
        generated, judged = _collected(pocket.evaluation_file(at.collection(slug)))
        tokens += generated
        tests += judged
    return Cost(steps, examples, seconds + collecting, collecting, tokens, tests, memory)


def _length(steps: int, share: float, slug: str) -> int:
    """Steps of a part of training; of two halves the second one has the odd step."""
    if share == 0.5:
        return steps // 2 if slug == "ft_cobalt" else steps - steps // 2
    return int(share * steps)


def _samples(run: Path) -> int:
    """Rewarded samples of a step of a training run."""
    from omegaconf import OmegaConf

    config = OmegaConf.load(run / "config.yaml")
    return int(config.data.train_batch_size * config.actor_rollout_ref.rollout.n)


def _collected(evaluation: Path) -> tuple[int, int]:
    """Generated tokens and judged tests of a collection."""
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

    def __init__(self, folder: Path, seeds: Sequence[int], *, fast: bool) -> None:
        self.at = {seed: SeedFolders(folder, seed, fast) for seed in seeds}
        self.runs: dict[Method, dict[int, Run]] = {
            method: {seed: read_run(method.name, at.evaluation(method)) for seed, at in self.at.items()}
            for method in METHODS
        }
        self.perturbed = {
            method: {seed: read_run(method.name, at.perturbed(method)) for seed, at in self.at.items()}
            for method in METHODS
            if method.perturbed
        }
        for seed in seeds:
            check_comparable([runs[seed] for runs in self.runs.values()])
            check_comparable([runs[seed] for runs in self.perturbed.values()])
        self.costs = {method: [cost(at, method) for at in self.at.values()] for method in METHODS if method is not BASE}

    def view(self, name: str) -> list[Method]:
        """The rows of a view."""
        return [method for method in METHODS if method.view in (name, "both")]

    def tables(self) -> list[tuple[str, Table]]:
        """Every table, under its heading."""
        examples, time = self.view("examples"), self.view("time")
        named = {method.name: self.runs[method] for method in examples}
        timed = {method.name: self.runs[method] for method in time}
        counts = {"": ["examples"], BASE.name: ["0"]}
        for method in examples:
            if method in self.costs:
                of_method = self.costs[method]
                counts[method.name] = [f"{sum(one.examples for one in of_method) // len(of_method):,}"]
        spent = {"": ["steps", "seconds"]}
        for method in time:
            of_method = self.costs.get(method, [])
            steps = " / ".join(str(one.steps) for one in of_method) or "0"
            seconds = f"{sum(one.seconds for one in of_method) / len(of_method):,.0f}" if of_method else "0"
            spent[method.name] = [steps, seconds]
        files = {m.name: [run.evaluation for run in self.runs[m].values()] for m in examples}
        collections = {
            name: [pocket.evaluation_file(at.collection(slug)) for at in self.at.values()]
            for name, slug in (
                ("base", "cobalt"),
                ("FT", "ft_cobalt"),
                ("FT-Cobalt after its first half", "ft_cobalt_rounds"),
            )
        }
        return [
            ("Ceilings", ceiling_table([_ceilings(at.world) for at in self.at.values()])),
            (
                "Equal training examples",
                pass_table("equal_examples", "Equal training examples, except for base and FT.", named, counts),
            ),
            ("FT-Cobalt against the others", gain_table(named, FT_COBALT.name)),
            (
                "Equal time",
                pass_table(
                    "equal_time",
                    "Equal time: the last checkpoint that fits into FT-Cobalt's time, its collection included.",
                    timed,
                    spent,
                ),
            ),
            ("Repairs", moves_table(files)),
            ("Costs", cost_table({m.name: self.costs[m] for m in (*examples, *OFFLINE_METHODS) if m in self.costs})),
            (
                "Impossible feedback",
                impossible_table(
                    {m.name: runs for m, runs in self.perturbed.items()},
                    {m.name: self._events(m) for m in self.perturbed},
                ),
            ),
            ("One-step recoverability", recoverability_table(collections)),
            *self._offline_tables(),
        ]

    def _offline_tables(self) -> list[tuple[str, Table]]:
        shown = (BASE, *OFFLINE_METHODS, COBALT, FT_COBALT)
        extra = {"": ["examples", "seconds", "KL"], BASE.name: ["0", "0", "n/a"]}
        for method in shown[1:]:
            of_method = self.costs[method]
            count = len(of_method)
            moved = [divergence(at, method) for at in self.at.values()] if method in OFFLINE_METHODS else []
            extra[method.name] = [
                f"{sum(one.examples for one in of_method) // count:,}",
                f"{sum(one.seconds for one in of_method) / count:,.0f}",
                f"{sum(moved) / count:.3f}" if moved else "n/a",
            ]
        caption = (
            "Offline training, on as many responses as Cobalt at most. Seconds without the making of submissions; KL is"
            " that of the seed model from the policy, a token, on programs of other problems."
        )
        runs = {method.name: self.runs[method] for method in shown}
        scores = {
            method.name: [
                sample_score(group)
                for at in self.at.values()
                for group in read_trajectories(pocket.evaluation_file(at.samples(method)))
            ]
            for method in SAMPLED
        }
        return [
            ("Offline RL", pass_table("offline", caption, runs, extra)),
            ("Offline RL: pass@k by difficulty", samples_table(scores)),
            ("Offline RL: published", published_offline_table()),
        ]

    def _events(self, method: Method) -> tuple[int, int]:
        """Hacking events of all seeds, and the turns after an impossible test."""
        files = [pocket.events_file(at.perturbed(method)) for at in self.at.values()]
        return sum(len(read_events(file)) for file in files), sum(tempted_turns(file) or 0 for file in files)

    def curves(self, view: str) -> dict[str, list[TurnMetrics]]:
        """Pooled Pass@1 by turn, for the plot."""
        return {method.name: _curve(self.runs[method]) for method in self.view(view)}


def divergence(at: SeedFolders, method: Method) -> float:
    """The last KL divergence that a run of offline training was validated with, in nats a token.

    Raises:
        UserError: the run was not validated.
    """
    found = [
        metrics["validation/kl"] for _, metrics in read_metrics(at.training(method.slug)) if "validation/kl" in metrics
    ]
    if not found:
        raise UserError(f"{at.training(method.slug)} was not validated")
    return found[-1]


def _ceilings(world: Path) -> Any:
    return json.loads((world / "data" / "ceilings.json").read_text(encoding="utf-8"))["test"]


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


def write_results(folder: Path, seeds: Sequence[int], output: Path, *, fast: bool) -> None:
    """Write the tables into a markdown file, and CSV files and plots into the folder beside it.

    Args:
        folder: Of the study.
        seeds: Those to show.
        output: The markdown file; if it is there, the text between the two marks is replaced.
        fast: Whether the study is one of `--fast`.

    Raises:
        UserError: a run is missing, or the file has no marks or cannot be written.
    """
    before, after = _kept(output)
    results = _Results(folder, seeds, fast=fast)
    side = output.with_suffix("")
    parts = []
    try:
        side.mkdir(parents=True, exist_ok=True)
        for heading, table in results.tables():
            (side / f"{table.name}.csv").write_text(to_csv(table), encoding="utf-8")
            parts.append(f"### {heading}\n\n{to_markdown(table)}")
            if table.name in ("equal_examples", "equal_time"):
                plot_turns(results.curves(table.name.removeprefix("equal_")), side / f"{table.name}.png")
                parts.append(f"![Pass@1 by turn]({side.name}/{table.name}.png)\n")
        output.write_text("\n".join([before + BEGIN, "", *parts, END + after]), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {output} and {side}: {error.strerror}") from None


def _kept(output: Path) -> tuple[str, str]:
    """The text before and after the marks of a file that is there."""
    if not output.exists():
        return "# Results\n\n", "\n"
    text = output.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{output} has no lines {BEGIN!r} and {END!r}: write them where the tables are to go")
    return before, after


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
    """Write, and return the exit code."""
    write_results(arguments.study, arguments.seeds, arguments.output_file, fast=arguments.fast)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
