"""`python -m cobalt.report.training RUN...`: reward and validation curves of trainings, from their metrics files.

A run is the folder of a training (`docs/training.md`). Nothing is smoothed and no figure is computed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from cobalt.cli import run_script
from cobalt.errors import UserError
from cobalt.report.__main__ import named_paths

METRICS = "metrics.jsonl"
REWARD = "reward/score"
_VALIDATION = ("val-core/", "/acc/mean@1")


@dataclass(frozen=True)
class Arguments:
    """Draw the mean reward of each step, and validation, of one or more trainings."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Folders of trainings; NAME=PATH names one in the plot."""
    output_file: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """PNG or SVG."""


@dataclass(frozen=True, slots=True)
class TrainingCurves:
    """What a training's metrics file says of its success, by step.

    Attributes:
        rewards: Steps and the mean rewards of their samples.
        validations: Steps and the share of validation prompts solved, one sample each.
    """

    rewards: Sequence[tuple[int, float]]
    validations: Sequence[tuple[int, float]]


def read_curves(run: Path) -> TrainingCurves:
    """Read a training's curves.

    Raises:
        UserError: there is no such file, or it is no metrics file.
    """
    path = run / METRICS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        raise UserError(f"{path} cannot be read: give the --output_dir of a training") from None
    rewards, validations = [], []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            step, metrics = int(record["step"]), dict(record["metrics"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path}, line {number}: no step of a training") from None
        if REWARD in metrics:
            rewards.append((step, float(metrics[REWARD])))
        begin, end = _VALIDATION
        solved = [value for name, value in metrics.items() if name.startswith(begin) and name.endswith(end)]
        if solved:
            validations.append((step, float(sum(solved) / len(solved))))
    return TrainingCurves(rewards, validations)


def draw_curves(runs: Mapping[str, Path], output: Path) -> None:
    """Draw the curves of trainings into one file.

    Raises:
        UserError: a run or the file's kind is wrong.
    """
    from cobalt.report.plots import check_plot_path, plot_training

    check_plot_path(output)
    curves = {name: read_curves(path) for name, path in runs.items()}
    plot_training({name: (run.rewards, run.validations) for name, run in curves.items()}, output)


def main(arguments: Arguments) -> int:
    """Draw; the exit code."""
    if not arguments.runs:
        raise UserError("there is nothing to draw: name at least one training's folder")
    draw_curves(named_paths(arguments.runs), arguments.output_file)
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
