"""Export the last checkpoint of a training run that fits into a given time (`python -m studies.equal_time`).

What the time of a run and of a command is, `studies.costs` says.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.training import run_folder
from cobalt.training.export import export
from studies.costs import command_seconds, training_seconds

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Export the last checkpoint of a training run that fits into the time that other runs and steps took together."""

    study: Path
    """Folder of the study."""
    run: Path
    """Folder of the training run."""
    output_dir: Path
    """The folder to write: the policy."""
    budget_runs: tuple[str, ...]
    """Training runs whose time is the budget, as FOLDER@STEP."""
    budget_steps: tuple[str, ...]
    """Steps of the study whose time is part of the budget."""
    spent_steps: tuple[str, ...] = ()
    """Steps of the study that the training run itself needed before."""


def main(arguments: Arguments) -> int:
    """Export, and return the exit code."""
    budget = command_seconds(arguments.study, arguments.budget_steps)
    for text in arguments.budget_runs:
        folder, _, last = text.rpartition("@")
        if not last.isdigit():
            raise UserError(f"--budget_runs {text}: give FOLDER@STEP")
        budget += training_seconds(Path(folder), int(last))
    step = last_step_within(arguments.run, budget - command_seconds(arguments.study, arguments.spent_steps))
    export(arguments.run, step, arguments.output_dir)
    return 0


def last_step_within(run: Path, seconds: float) -> int:
    """The last step with a checkpoint up to which a training run took no longer than `seconds`; at least its first one.

    Raises UserError if the run has no checkpoint.
    """
    steps = run_folder.steps(run)
    if not steps:
        raise UserError(f"{run} has no checkpoint: train it first")
    chosen = max((step for step in steps if training_seconds(run, step) <= seconds), default=steps[0])
    if chosen == steps[-1] or training_seconds(run, chosen) > seconds:
        logger.warning("%s: step %d of %d is taken for %.0f s", run, chosen, steps[-1], seconds)
    return chosen


if __name__ == "__main__":
    run_script(Arguments, main)
