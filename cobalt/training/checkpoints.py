"""A training run's checkpoints: which are whole, which are kept, and the metrics that lie beside each.

    checkpoints/global_step_N/actor/*_world_size_W_rank_R.pt   what each rank wrote
    checkpoints/global_step_N/metrics.json                     the step's metrics, as known before it was validated
    checkpoints/latest_checkpointed_iteration.txt              the last one, named when all of its files are written

Nothing here needs torch: a file of torch is a zip archive, whose table of contents is written last.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

from cobalt.stage.atomic import replacing

_FILE = re.compile(r"(?P<kind>\w+)_world_size_(?P<ranks>\d+)_rank_(?P<rank>\d+)\.pt")


def path_of(output: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return output / "checkpoints" / f"global_step_{step}"


def steps(output: Path) -> list[int]:
    """The steps that a run has folders of checkpoints of, in order; the last may be unfinished."""
    names = (path.name.removeprefix("global_step_") for path in (output / "checkpoints").glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit())


def last(output: Path) -> int:
    """The step of the last whole checkpoint; 0 for none."""
    named = _named(output)
    return max((step for step in steps(output) if step <= named and not missing_part(path_of(output, step))), default=0)


def _named(output: Path) -> int:
    tracker = _tracker(output)
    if not tracker.exists():
        return 0
    text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    # After a crash, or where the disk was full, it is empty or damaged.
    return int(text) if text.isascii() and text.isdigit() else max(steps(output), default=0)


def name_last(output: Path, step: int) -> None:
    """Name the last whole checkpoint; 0: there is none.

    Raises:
        OSError: the file cannot be written.
    """
    with replacing(_tracker(output)) as handle:
        handle.write(str(step).encode())


def _tracker(output: Path) -> Path:
    return output / "checkpoints" / "latest_checkpointed_iteration.txt"


def missing_part(folder: Path) -> str | None:
    """A file that a checkpoint lacks or that is cut off; None if every rank's files are there and complete."""
    ranks: dict[str, set[int]] = {}
    worlds: dict[str, int] = {}
    for path in sorted((folder / "actor").glob("*.pt")):
        found = _FILE.fullmatch(path.name)
        if found is None:
            continue
        if not _complete(path):
            return f"{path.name} is cut off"
        ranks.setdefault(found["kind"], set()).add(int(found["rank"]))
        worlds[found["kind"]] = int(found["ranks"])
    if "model" not in ranks:
        return "the weights are missing"
    for kind, world in worlds.items():
        for rank in range(world):
            if rank not in ranks[kind]:
                return f"{kind}_world_size_{world}_rank_{rank}.pt is missing"
    loader = folder / "data.pt"
    return "data.pt is cut off" if loader.exists() and not _complete(loader) else None


def _complete(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path):
            return True
    except (OSError, zipfile.BadZipFile):
        return False


def keep_metrics(output: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Write a step's metrics beside its checkpoint, before that counts as whole.

    Raises:
        OSError: the file cannot be written.
    """
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
    """Remove all checkpoints but the newest ones, once the newest is whole; returns the steps that were removed.

    Args:
        output: The run's folder.
        keep: How many to keep, at least 1.
        also: Steps to keep beside them.
    """
    there = steps(output)
    if not there or last(output) != there[-1]:
        return []
    removed = [step for step in there[:-keep] if step not in also]
    for step in removed:
        shutil.rmtree(path_of(output, step))
    return removed
