"""A training run's folder: where a rerun continues, and a metrics file without a missing or repeated step.

    checkpoints/        see `cobalt.training.checkpoints`
    metrics.jsonl       one line {"step": N, "metrics": {...}} for each step, appended to by the trainer
    rollouts/           see `cobalt.report.rollouts`
    metrics.run.json    what made it; a rerun with other settings is refused

A step's checkpoint is written before its validation and its line of metrics. A run killed in between has a checkpoint
ahead of its metrics. A rerun continues from it all the same, and the line is made of the metrics beside the checkpoint;
where these are missing, it has none.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.report.curves import validation_quality
from cobalt.report.rollouts import recorded_steps, rollout_file
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import open_manifest
from cobalt.training import checkpoints

LOCK = ".lock"
"""Name of the file that is locked while a run writes into the folder."""


def metrics_path(output: Path) -> Path:
    """Where a run's metrics lie."""
    return output / "metrics.jsonl"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins or goes on."""

    step: int
    """The step of the checkpoint to load; 0: none, from the beginning."""
    reported: bool = True
    """Whether that step's metrics are in the metrics file. If not, the first validation completes them."""


def prepare(output: Path, settings: Mapping[str, Any], inputs: list[Path], *, validates: bool = False) -> Start:
    """Make the folder ready for a run or a rerun, which goes on from the last whole checkpoint.

    Lines of metrics, rollouts and unfinished checkpoints after its step are removed: the rerun makes them again.

    Args:
        output: The run's folder.
        settings: Everything that decides the result (`cobalt.stage.manifest`).
        inputs: Data files; their content is compared.
        validates: Whether the trainer validates after it has written a checkpoint. Then the line of a checkpoint whose
            validation was cut off is left to the trainer (`Start.reported`).

    Raises:
        UserError: the folder holds a run with other settings, or checkpoints without their metrics.
    """
    metrics = metrics_path(output)
    lines = _whole_lines(metrics)
    step = checkpoints.last(output)
    if step and not lines:
        raise UserError(f"{output} has checkpoints but no {metrics.name}: put it back, or name another folder")
    open_manifest(metrics, settings, inputs)
    # In this order, so that a kill in between leaves nothing that looks like progress.
    if step:
        checkpoints.name_last(output, step)
    for later in checkpoints.steps(output):
        if later > step:
            shutil.rmtree(checkpoints.path_of(output, later))
    for later in recorded_steps(output):
        if later > step:
            rollout_file(output, later).unlink()
    reported = not step or step in {at for at, _ in lines}
    if metrics.exists():
        with replacing(metrics) as handle:
            handle.writelines(line.encode() for at, line in lines if step and at <= step)
            if not reported and not validates:
                known = checkpoints.kept_metrics(output, step) or {}
                handle.write(f"{json.dumps({'step': step, 'metrics': known})}\n".encode())
    return Start(step, reported or not validates)


def best_step(output: Path) -> int | None:
    """The first step with the best validation (`validation_quality`), of those with a whole checkpoint; None: none."""
    qualities = {}
    for step, line in _whole_lines(metrics_path(output)):
        quality = validation_quality(json.loads(line)["metrics"])
        if quality is not None and step and not checkpoints.missing_part(checkpoints.path_of(output, step)):
            qualities[step] = quality
    return max(qualities, key=lambda step: (qualities[step], -step), default=None)


def _whole_lines(metrics: Path) -> list[tuple[int, str]]:
    """Step and text of each line; a torn last one is left out."""
    if not metrics.exists():
        return []
    lines = []
    for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            try:
                lines.append((int(json.loads(line)["step"]), line))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{metrics} holds a line that is not a record of metrics: {line[:80]!r}") from None
    return lines
