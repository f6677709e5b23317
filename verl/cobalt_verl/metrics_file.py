"""The metrics file of a training run, which trainers append to."""

import json
import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from cobalt.report.curves import METRICS
from cobalt.training import run_folder


def add_metrics_file(loggers: dict[str, Any], run: Path) -> None:
    """Add the metrics file of a run's folder to the loggers of veRL's `Tracking`."""
    if "jsonl" not in loggers:
        loggers["jsonl"] = JsonlLogger(run / METRICS)


class JsonlLogger:
    """Appends `{"step": N, "metrics": {...}}`, one whole line at a time.

    The first line may be the cut-off validation of the step that a run goes on from: it gets the metrics that lie
    beside the step's checkpoint.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._run = path.parent
        self._file = path.open("a", encoding="utf-8")
        self._first = True

    def log(self, data: dict[str, Any], step: int) -> None:
        """Write one line; values that are not numbers are left out."""
        known = run_folder.saved_metrics(self._run, step) if self._first else {}
        self._first = False
        line = {"step": step, "metrics": known | numbers(data)}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics whose values are real numbers."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, Real)}
