"""The metrics file of a training run, which trainers append to."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

METRICS_FILE = "COBALT_METRICS_FILE"
"""Environment variable: the JSONL file for metrics, one line for each step."""


def add_metrics_file(loggers: dict[str, Any]) -> None:
    """Let a run's metrics go into its file, too, if the environment names one.

    Args:
        loggers: Those of veRL's `Tracking`, by name.
    """
    path = os.environ.get(METRICS_FILE)
    if path and "jsonl" not in loggers:
        loggers["jsonl"] = JsonlLogger(Path(path))


class JsonlLogger:
    """Appends `{"step": N, "metrics": {...}}`, one whole line at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def log(self, data: dict[str, Any], step: int) -> None:
        """Write one line; values that are not numbers are left out."""
        numbers = {
            name: float(value)
            for name, value in data.items()
            if isinstance(value, int | float | np.number) and not isinstance(value, np.complexfloating)
        }
        self._file.write(json.dumps({"step": step, "metrics": numbers}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
