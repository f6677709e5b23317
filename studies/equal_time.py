"""Export the last checkpoint of a row of equal time that fits into the time of FT-Cobalt (`studies.reproduce`).

What the time of a run and of a command is, `studies.costs` says.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.training import run_folder
from cobalt.training.export import export
from studies.costs import command_seconds, training_seconds
from studies.methods import EQUAL_TIME, FT_COBALT, STEPS, SeedFolders


@dataclass(frozen=True)
class Arguments:
    """Export the last checkpoint of a row that fits into the time of FT-Cobalt, its collection included."""

    study: Path
    """Folder of studies.reproduce."""
    seed: int
    row: Literal["ft_more_time", "cobalt_time", "grpo_mt_time", "verpo_mt_time"]
    """The row, by its name in folders."""
    output_dir: Path
    """The folder to write: the policy."""


def main(arguments: Arguments) -> int:
    """Export, and return the exit code."""
    at = SeedFolders(arguments.study, arguments.seed)
    [method] = [method for method in EQUAL_TIME if method.slug == arguments.row]
    # Where nothing was collected, the rows of problems take a moment, and count on neither side.
    spent = method.prepared if len(method.prepared) > 1 else ()
    budget = sum(training_seconds(at.home / f"{name}_training", STEPS) for name, _ in FT_COBALT.trained)
    budget += command_seconds(at.folder, map(at.step, FT_COBALT.prepared[1:]))
    budget -= command_seconds(at.folder, map(at.step, spent))
    run = at.home / f"{method.trained[0][0]}_training"
    export(run, last_step_within(run, budget), arguments.output_dir)
    return 0


def last_step_within(run: Path, seconds: float) -> int:
    """The step of the last checkpoint within `seconds`, at least of the first. Raises UserError if there is none."""
    if not (steps := run_folder.steps(run)):
        raise UserError(f"{run} has no checkpoint: train it first")
    return max((step for step in steps if training_seconds(run, step) <= seconds), default=steps[0])


if __name__ == "__main__":
    run_script(Arguments, main)
