"""How much disk a training run needs: its checkpoints, as many as are there at a time, and the exported policy.

The bytes of one checkpoint follow from the shapes of the policy (`cobalt.training.states`). Logs and metrics are not
counted.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.training.states import checkpoint_bytes, export_bytes

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a run needs.

    Attributes:
        checkpoint: Bytes of one checkpoint.
        count: Most checkpoints at a time.
        export: Bytes of the exported policy.
    """

    checkpoint: int
    count: int
    export: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.checkpoint * self.count + self.export

    def __str__(self) -> str:
        return (
            f"{self.total / _GIB:.1f} GiB of disk: at most {self.count} checkpoints of {self.checkpoint / _GIB:.1f} GiB"
            f" at a time, and the exported policy of {self.export / _GIB:.1f} GiB"
        )


def disk_use(config: Any, steps: int, keep: int | None) -> DiskUse:
    """The disk that a run needs.

    Args:
        config: The composed configuration of a training run, online or offline.
        steps: Its steps.
        keep: How many of the last checkpoints are kept; None: all.

    Raises:
        UserError: the policy has no configuration on this machine.
    """
    every = int(config.trainer.save_freq)
    count = -(-steps // every) if every > 0 else 0
    if keep is not None:
        count = min(count, keep + 2)  # the best one is kept as well, and the newest is written before others go
    return DiskUse(checkpoint_bytes(config), count, export_bytes(config) if count else 0)


def check_disk(output: Path, use: DiskUse) -> None:
    """Check that a run finds the disk that it needs; what it has already written counts as found.

    Raises:
        UserError: it does not.
    """
    there = output
    while not there.exists():
        there = there.parent
    written = (path for name in ("checkpoints", "model") for path in (output / name).rglob("*") if path.is_file())
    found = shutil.disk_usage(there).free + sum(path.stat().st_size for path in written)
    if found < use.total:
        raise UserError(
            f"training needs {use}; {output} has {found / _GIB:.1f} GiB: give --keep N to keep fewer checkpoints, a"
            " greater trainer.save_freq, or another --output_dir"
        )
