"""A training run's folder: its checkpoints, its metrics without a missing or repeated step, where a rerun continues.

    checkpoints/global_step_N/actor/*_world_size_W_rank_R.pt   what each rank wrote
    checkpoints/global_step_N/metrics.json                     the step's metrics, as known before it was validated
    checkpoints/latest_checkpointed_iteration.txt              the last one, named when all of its files are written
    metrics.jsonl       one line {"step": N, "metrics": {...}} for each step, appended to by the trainer
    rollouts/           see `cobalt.report.rollouts`
    metrics.run.json    what made it; a rerun with other settings is refused

A step's checkpoint is written before its validation and its line of metrics. If a run is killed in between, the rerun
makes the line of the metrics beside the checkpoint; where these are missing, it has none. Nothing here needs torch: a
file of torch is a zip archive, whose table of contents is written last.
"""

import contextlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.report.curves import METRICS, validation_quality
from cobalt.report.rollouts import recorded_steps, rollout_file
from cobalt.stage.atomic import replace_text
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import open_manifest

LOCK = ".lock"  # the file that is locked while a run writes into the folder
_TRACKER = "checkpoints/latest_checkpointed_iteration.txt"


@dataclass(frozen=True, slots=True)
class Start:
    """The step of the checkpoint where a run goes on, 0 for none; whether the metrics file has that step's line."""

    step: int
    reported: bool = True


def prepare(output: Path, settings: Mapping[str, Any], inputs: list[Path], *, validates: bool = False) -> Start:
    """Make the folder ready for a run or a rerun, which goes on from the last whole checkpoint.

    Lines of metrics, rollouts and unfinished checkpoints after its step are removed: the rerun makes them again.
    `settings` and the content of `inputs` must be as before (`cobalt.stage.manifest`). A trainer that `validates` after
    it has written a checkpoint also writes the line of one whose validation was cut off (`Start.reported`).

    Raises:
        UserError: the folder holds a run with other settings, or checkpoints without their metrics.
    """
    metrics = output / METRICS
    lines, step = _whole_lines(metrics), last(output)
    if step and not lines:
        raise UserError(f"{output} has checkpoints but no {METRICS}: put it back, or name another folder")
    open_manifest(metrics, settings, inputs)
    # In this order, so that a kill in between leaves nothing that looks like progress.
    if step:
        name_last(output, step)
    for later in steps(output):
        if later > step:
            shutil.rmtree(checkpoint(output, later))
    for later in recorded_steps(output):
        if later > step:
            rollout_file(output, later).unlink()
    reported = not step or step in {at for at, _ in lines}
    if metrics.exists():
        earlier = [line for at, line in lines if step and at <= step]
        if not reported and not validates:
            earlier.append(f"{json.dumps({'step': step, 'metrics': saved_metrics(output, step)})}\n")
        replace_text(metrics, "".join(earlier))
    return Start(step, reported or not validates)


def _whole_lines(metrics: Path) -> list[tuple[int, str]]:
    """Step and text of each line; a torn last one is left out."""
    text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    try:
        return [(int(json.loads(line)["step"]), line) for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{metrics} holds a line that is not a record of metrics ({error})") from None


def checkpoint(output: Path, step: int) -> Path:
    """Folder of the checkpoint of a step."""
    return output / "checkpoints" / f"global_step_{step}"


def steps(output: Path) -> list[int]:
    """The steps that a run has folders of checkpoints of, in order; the last may be unfinished."""
    names = (path.name.removeprefix("global_step_") for path in (output / "checkpoints").glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit())


def last(output: Path) -> int:
    """The step of the last whole checkpoint; 0 for none."""
    tracker, all_steps = output / _TRACKER, steps(output)
    if not tracker.exists():
        return 0
    text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    # After a crash, or where the disk was full, it is empty or damaged.
    named = int(text) if text.isascii() and text.isdigit() else max(all_steps, default=0)
    return max((step for step in all_steps if step <= named and not missing_part(output, step)), default=0)


def name_last(output: Path, step: int) -> None:
    """Name the last whole checkpoint; 0: there is none."""
    replace_text(output / _TRACKER, str(step))


def missing_part(output: Path, step: int) -> str | None:
    """A file that a checkpoint lacks or that is cut off; None if every rank's files are there and complete."""
    folder = checkpoint(output, step)
    files = [*(folder / "actor").glob("*_world_size_*_rank_*.pt"), *folder.glob("data.pt")]
    if cut := next((path.name for path in files if not zipfile.is_zipfile(path)), None):
        return f"{cut} is cut off"
    names = {path.name for path in files} - {"data.pt"}
    if not any(name.startswith("model_") for name in names):
        return "the weights are missing"
    kinds = {name.rpartition("_rank_")[0] for name in names}
    whole = (f"{kind}_rank_{rank}.pt" for kind in kinds for rank in range(int(kind.rpartition("_")[2])))
    return next((f"{name} is missing" for name in whole if name not in names), None)


def keep_metrics(output: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Write a step's metrics beside its checkpoint, before that counts as whole."""
    replace_text(checkpoint(output, step) / "metrics.json", json.dumps(dict(metrics)))


def saved_metrics(output: Path, step: int) -> dict[str, float]:
    """Metrics that `keep_metrics` wrote; empty if it did not."""
    with contextlib.suppress(OSError, ValueError):  # it is missing or damaged
        return dict(json.loads((checkpoint(output, step) / "metrics.json").read_bytes()))
    return {}


def best_step(output: Path) -> int | None:
    """The first step with the best validation (`validation_quality`), of those with a whole checkpoint; None: none."""
    qualities = {}
    for step, line in _whole_lines(output / METRICS):
        quality = validation_quality(json.loads(line)["metrics"])
        if quality is not None and step and not missing_part(output, step):
            qualities[step] = quality
    return max(qualities, key=lambda step: (qualities[step], -step), default=None)


def prune(output: Path, keep: int | None) -> None:
    """Remove all checkpoints but the `keep` newest and the best, once the newest is whole."""
    all_steps = steps(output)
    if keep is None or not all_steps or last(output) != all_steps[-1]:
        return
    for step in set(all_steps[:-keep]) - {best_step(output)}:
        shutil.rmtree(checkpoint(output, step))
