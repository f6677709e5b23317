"""Report a training run on the terminal: one line for each step, from its metrics file. train.log has all output."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cobalt.report.curves import validation_solved

logger = logging.getLogger(__name__)


def step_reporter(metrics: Path) -> Callable[[], None]:
    """A function that logs a line for each step that the metrics file gained since it was last called.

    Args:
        metrics: The file, which need not exist yet; lines that it has at this call are not logged.
    """
    told = metrics.stat().st_size if metrics.exists() else 0

    def report() -> None:
        nonlocal told
        if not metrics.exists():
            return
        with metrics.open("rb") as file:
            file.seek(told)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                told += len(line)
                record = json.loads(line)
                logger.info("step %d: %s", record["step"], ", ".join(_words(record["metrics"])))

    return report


def _words(metrics: dict[str, Any]) -> list[str]:
    words = []
    if "reward/score" in metrics:
        words.append(f"mean reward {metrics['reward/score']:.3f}")
        words.append(f"{100 * metrics['reward/acc']:.1f} % solved")
        words.append(f"{metrics['timing_s/step']:.1f} s")
    if "training/response_tokens" in metrics:  # offline training
        if "actor/loss" in metrics:  # not in a step without a response to train on
            words.append(f"loss {metrics['actor/loss']:.4f}")
        words.append(f"{metrics['training/response_tokens']:.0f} response tokens")
        words.append(f"{metrics['timing_s/step']:.1f} s")
    if "validation/accepted_log_prob" in metrics:
        words.append(f"validation: accepted responses {metrics['validation/accepted_log_prob']:.4f} nats a token")
    if "validation/other_log_prob" in metrics:
        words.append(f"others {metrics['validation/other_log_prob']:.4f}")
    solved = validation_solved(metrics)
    if solved is not None:
        words.append(f"validation {100 * solved:.1f} % solved")
    return words
