"""Export the last checkpoint of a training run that fits into a given time (`python -m studies.equal_time`).

The time of a training run up to a step is the sum of its steps (`timing_s/step`), without its start. The first step,
which warms up the engine, counts as the median of the others. The time of any other step of the study is that of its
command, without the start of the services: of the last attempt alone, if it was stopped and went on. This leaves out
what a run on a cluster pays once and a miniature would pay out of all proportion.
"""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cobalt.report.curves import read_metrics
from cobalt.stage.cli import run_script
from cobalt.stage.errors import UserError
from cobalt.stage.records import read_records
from cobalt.training import run_folder
from cobalt.training.export import export
from studies.plan import STEPS_FILE

logger = logging.getLogger(__name__)


def training_seconds(run: Path, step: int) -> float:
    """The seconds of a training run's steps up to `step`, and with it.

    Raises UserError if the run has fewer steps, or no metrics.
    """
    found = read_metrics(run)
    seconds = [m["timing_s/step"] for number, m in found if 0 < number <= step and "timing_s/step" in m]
    if len(seconds) < step:
        raise UserError(f"{run} has {len(seconds)} steps, not {step}: train it to its end")
    if step > 1:
        seconds[0] = statistics.median(seconds[1:])
    return sum(seconds)


def command_seconds(study: Path, steps: Sequence[str]) -> float:
    """The seconds of the last successful commands of a study's steps, without the start of services.

    Raises UserError if a step has not run.
    """
    records = {record["step"]: record for record in read_records(study / STEPS_FILE)}
    missing = [step for step in steps if step not in records]
    if missing:
        raise UserError(f"step {missing[0]} of {study} has not run")
    return sum(float(records[step]["seconds"]) - float(records[step]["services_seconds"]) for step in steps)


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
