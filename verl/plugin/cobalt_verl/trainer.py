"""The synchronous trainer with two additions: parts of the reward as metrics, and a metrics file that is appended to.

veRL reports parts of the reward in validation only, and its own file logger begins a new file at every start.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

METRICS_FILE = "COBALT_METRICS_FILE"
"""Environment variable: the JSONL file for metrics, one line for each step."""


class JsonlLogger:
    """Appends `{"step": N, "metrics": {...}}`, one whole line at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def log(self, data: dict[str, Any], step: int) -> None:
        """Write one line; what is no number is left out."""
        numbers = {
            name: float(value) for name, value in data.items() if np.isscalar(value) and not isinstance(value, str)
        }
        self._file.write(json.dumps({"step": step, "metrics": numbers}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


class CobaltTrainer(PPOTrainerSync):
    """See the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        # `fit` makes the loggers and uses them at once: this is where one more can be added.
        if name == "logger" and os.environ.get(METRICS_FILE):
            value.logger["jsonl"] = JsonlLogger(Path(os.environ[METRICS_FILE]))
        super().__setattr__(name, value)

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *arguments: Any, **keywords: Any) -> None:
        super()._compute_metrics(batch, metrics, *arguments, **keywords)
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        fields = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        parts = [extra["reward_extra_info"] for extra in list(fields["extra_fields"])]
        for name in parts[0]:
            metrics[f"reward/{name}"] = float(np.mean([part[name] for part in parts]))
