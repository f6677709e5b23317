"""A training run's checkpoints: which are whole, which are kept, and the metrics that lie beside each.

    checkpoints/global_step_N/actor/*_world_size_W_rank_R.pt   what each rank wrote
    checkpoints/global_step_N/metrics.json                     the step's metrics, as known before it was validated
    checkpoints/latest_checkpointed_iteration.txt              the last one, named when all of its files are written

Nothing here needs torch: a file of torch is a zip archive, whose table of contents is written last.
"""

import json
import shutil
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

from cobalt.stage.atomic import replacing


def path_of(output: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return output / "checkpoints" / f"global_step_{step}"


def steps(output: Path) -> list[int]:
    """The steps that a run has folders of checkpoints of, in order; the last may be unfinished."""
    names = (path.name.removeprefix("global_step_") for path in (output / "checkpoints").glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit())


def last(output: Path) -> int:
    """The step of the last whole checkpoint; 0 for none."""
    tracker, all_steps = _tracker(output), steps(output)
    if not tracker.exists():
        return 0
    text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    # After a crash, or where the disk was full, it is empty or damaged.
    named = int(text) if text.isascii() and text.isdigit() else max(all_steps, default=0)
    return max((step for step in all_steps if step <= named and not missing_part(path_of(output, step))), default=0)


def name_last(output: Path, step: int) -> None:
    """Name the last whole checkpoint; 0: there is none."""
    with replacing(_tracker(output)) as handle:
        handle.write(str(step).encode())


def _tracker(output: Path) -> Path:
    return output / "checkpoints" / "latest_checkpointed_iteration.txt"


def missing_part(folder: Path) -> str | None:
    """A file that a checkpoint lacks or that is cut off; None if every rank's files are there and complete."""
    files = [*(folder / "actor").glob("*_world_size_*_rank_*.pt"), *folder.glob("data.pt")]
    for path in files:
        if not zipfile.is_zipfile(path):
            return f"{path.name} is cut off"
    names = {path.name for path in files} - {"data.pt"}
    if not any(name.startswith("model_") for name in names):
        return "the weights are missing"
    for kind in {name.rpartition("_rank_")[0] for name in names}:
        for rank in range(int(kind.rpartition("_")[2])):
            if f"{kind}_rank_{rank}.pt" not in names:
                return f"{kind}_rank_{rank}.pt is missing"
    return None


def keep_metrics(output: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Write a step's metrics beside its checkpoint, before that counts as whole."""
    folder = path_of(output, step)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "metrics.json") as handle:
        handle.write(json.dumps(dict(metrics)).encode())


def kept_metrics(output: Path, step: int) -> dict[str, float] | None:
    """What `keep_metrics` wrote; None if it did not."""
    try:
        metrics = json.loads((path_of(output, step) / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return metrics if isinstance(metrics, dict) else None


def prune(output: Path, keep: int, also: Collection[int] = ()) -> list[int]:
    """Remove all checkpoints but the `keep` newest and `also`, once the newest is whole; returns the steps removed."""
    all_steps = steps(output)
    if not all_steps or last(output) != all_steps[-1]:
        return []
    removed = [step for step in all_steps[:-keep] if step not in also]
    for step in removed:
        shutil.rmtree(path_of(output, step))
    return removed
