"""Evaluation of single-turn results: the flags and the work of `eval_single_turn.py`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Arguments:
    """Estimate pass@k on hidden tests, over all problems and by difficulty, and count different programs.

    Judges nothing and needs no service: the result of run_single_turn_*.py has the verdicts.
    """

    input_file: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """Result of run_single_turn_*.py (JSONL)."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """The same records as evaluated trajectories of one turn (JSONL), for reports and the viewer; the figures are next
    to it, as .metrics.json."""
    k: tuple[int, ...] | None = None
    """The k of pass@k. Default: 1 and 10, as far as every problem has so many samples."""
    names: Literal["renamed", "kept"] = "renamed"
    """Whether programs that differ in the names of their variables only count as the same (renamed) or not (kept)."""


def main(arguments: Arguments) -> int:
    """Run, and return the exit code."""
    from cobalt.commands.ending import say_evaluated
    from cobalt.episode.record import read_trajectories
    from cobalt.report.samples import samples_table
    from cobalt.rollout.evaluate import turn_metrics, write_metrics
    from cobalt.rollout.evaluate_single import evaluate_single_turn, sample_metrics, sample_score

    result = arguments.output_file
    evaluate_single_turn(arguments.input_file, result)
    scores = [sample_score(group, arguments.names) for group in read_trajectories(result)]
    groups = sample_metrics(scores, arguments.k)
    figures = {"single_turn": {"names": arguments.names, "groups": [asdict(group) for group in groups]}}
    write_metrics(turn_metrics(read_trajectories(result), str(result)), result, figures)
    Console().print(samples_table(groups, title=f"Hidden tests: {result}"))
    say_evaluated(result)
    return 0
