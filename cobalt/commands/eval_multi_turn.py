"""Hidden-test evaluation: the flags and the work of `eval_multi_turn.py`."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from cobalt.commands.ending import say_evaluated
from cobalt.episode.record import read_trajectories
from cobalt.judge import ServeJudge
from cobalt.problems import hub
from cobalt.report.plots import check_plot_path, plot_turns
from cobalt.report.protocol_tables import protocol_figures, protocols_for_terminal
from cobalt.report.sharing import check_wandb, log_evaluation, push_trajectories
from cobalt.report.turns import turn_table
from cobalt.rollout.evaluate import TurnMetrics, run_evaluation, turn_metrics, write_metrics
from cobalt.rollout.protocols import Mean, Outcomes, check_k, collecting
from cobalt.stage.files import check_files


@dataclass(frozen=True)
class Arguments:
    """Judge every turn of a multi-turn result on the hidden tests; print Pass@1 by turn.

    Needs the Ray Serve app `evaluator`. Running the same command again resumes, and prints the table of a finished
    result without judging anything.
    """

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Result of run_multi_turn_*.py (JSONL)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The same records with their hidden pass rates (JSONL); the figures are next to it, as .metrics.json."""
    plot: Path | None = None
    """Draw Pass@1 by turn into this PNG or SVG file."""
    k: tuple[int, ...] = ()
    """The k of pass@k and of the best of k by public tests. Default: the best of all samples, without pass@k."""
    push_to_hub: str | None = None
    """Also upload the result, its manifest and its figures to this repository of the Hugging Face Hub (owner/name;
    created as private), or copy them into a folder that begins with / or ./"""
    wandb: bool = False
    """Log the figures to Weights & Biases too; WANDB_PROJECT names the project, by default cobalt."""
    concurrency: int = 64
    """Problems worked on at a time."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    check_k(arguments.k)
    if arguments.push_to_hub:
        hub.check_target(arguments.push_to_hub)
    if arguments.wandb:
        check_wandb()
    if arguments.plot:
        check_plot_path(arguments.plot)
    check_files([arguments.input_file], [arguments.output_file, *([arguments.plot] if arguments.plot else [])])
    failed = asyncio.run(
        run_evaluation(arguments.input_file, arguments.output_file, ServeJudge(), concurrency=arguments.concurrency)
    )
    metrics, figures = measure(arguments.output_file, arguments.k)
    Console().print(turn_table(metrics, title=f"Pass@1 by turn, hidden tests: {arguments.output_file}"))
    if figures:
        Console().print(protocols_for_terminal(figures, title="Other measures, in per cent (docs/measures.md)"))
    if arguments.plot:
        plot_turns({arguments.output_file.stem: metrics}, arguments.plot)
    if arguments.wandb:
        log_evaluation(arguments.output_file, metrics, figures)
    if arguments.push_to_hub:
        place = push_trajectories(arguments.output_file, arguments.push_to_hub)
        Console().print(f"the trajectories are at {place}", soft_wrap=True)
    if failed:
        return 1
    say_evaluated(arguments.output_file)
    return 0


def measure(evaluation: Path, k: Sequence[int] = ()) -> tuple[list[TurnMetrics], dict[str, list[Mean]]]:
    """Compute the figures of evaluated trajectories and write them next to the file, as .metrics.json.

    Args:
        evaluation: The evaluated trajectories; some problems may be missing.
        k: As for the command.

    Returns:
        The figures by turn, and those of the other measures (`cobalt.report.protocol_tables`).
    """
    outcomes: list[Outcomes] = []
    metrics = turn_metrics(collecting(read_trajectories(evaluation, unfinished=True), outcomes), str(evaluation))
    figures = protocol_figures(outcomes, k)
    protocols = {name: [asdict(mean) for mean in means] for name, means in figures.items()}
    write_metrics(metrics, evaluation, {"protocols": protocols})
    return metrics, figures
