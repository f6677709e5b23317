"""A training run's folder: where a rerun continues, and a metrics file without a missing or repeated step.

    checkpoints/global_step_N/    veRL's; latest_checkpointed_iteration.txt names the last whole one
    metrics.jsonl                 one line {"step": N, "metrics": {...}} for each step, appended to by the trainer
    metrics.run.json              what made it; a rerun with other settings is refused

A step's checkpoint is written before its metrics. A run killed between the two has a checkpoint ahead of its metrics,
so a rerun continues from the last checkpoint whose step was reported.
"""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cobalt.atomic import replacing
from cobalt.errors import UserError
from cobalt.manifest import open_manifest


@contextlib.contextmanager
def locked(output: Path) -> Iterator[None]:
    """Lock the folder for one run, and make it if it does not exist.

    Raises:
        UserError: another run holds the lock, or the folder cannot be made.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        handle = (output / ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write into {output}: {error.strerror}") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another run trains in {output}: wait for it, or name another folder") from None
        yield


def metrics_path(output: Path) -> Path:
    """Where a run's metrics lie."""
    return output / "metrics.jsonl"


def checkpoint_path(output: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return output / "checkpoints" / f"global_step_{step}"


def last_checkpoint(output: Path) -> int:
    """The step of the last whole checkpoint; 0 for none.

    Raises:
        UserError: the file that names it is not readable.
    """
    tracker = _tracker(output)
    if not tracker.exists():
        return 0
    text = tracker.read_text(encoding="utf-8").strip()
    if not text:
        return max(
            (step for step in checkpoints(output) if (checkpoint_path(output, step) / "data.pt").exists()), default=0
        )
    if not text.isdigit():
        raise UserError(f"{tracker} does not hold a step: write the step of the last whole checkpoint into it")
    return int(text)


def prepare(output: Path, settings: Mapping[str, Any], inputs: list[Path]) -> int:
    """Make the folder ready for a run or a rerun; returns the step to continue from, 0 for the beginning.

    Lines of metrics and checkpoints after that step are removed: the rerun makes them again.

    Args:
        output: The run's folder.
        settings: Everything that decides the result (`cobalt.manifest`).
        inputs: Data files; their content is compared.

    Raises:
        UserError: the folder holds a run with other settings, or checkpoints without their metrics.
    """
    metrics = metrics_path(output)
    lines = _whole_lines(metrics)
    last = last_checkpoint(output)
    if last and not lines:
        raise UserError(f"{output} has checkpoints but no {metrics.name}: put it back, or name another folder")
    open_manifest(metrics, settings, inputs)
    reported = {step for step, _ in lines}
    step = max((step for step in checkpoints(output) if step <= last and step in reported), default=0)
    # In this order, so that a kill in between leaves nothing that looks like progress.
    if last:
        _tracker(output).write_text(str(step), encoding="utf-8")
    for later in checkpoints(output):
        if later > step:
            shutil.rmtree(checkpoint_path(output, later))
    if metrics.exists():
        with replacing(metrics) as handle:
            handle.writelines(line.encode() for at, line in lines if step and at <= step)
    return step


def _tracker(output: Path) -> Path:
    """The file in which veRL names the last whole checkpoint."""
    return output / "checkpoints" / "latest_checkpointed_iteration.txt"


def checkpoints(output: Path) -> list[int]:
    """The steps that a run has checkpoints of, in order."""
    names = (path.name.removeprefix("global_step_") for path in (output / "checkpoints").glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit())


def _whole_lines(metrics: Path) -> list[tuple[int, str]]:
    """Step and text of each line; a torn last one is left out."""
    if not metrics.exists():
        return []
    lines = []
    for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            if not line.endswith("\n"):
                continue
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("step"), int):
            raise UserError(f"{metrics} holds a line that is not a record of metrics: {line[:80]!r}")
        lines.append((record["step"], line))
    return lines
