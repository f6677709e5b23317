"""A line for each step of a training run, from its metrics file."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cobalt.report.curves import validation_solved

logger = logging.getLogger(__name__)

_ALL = 0.9999  # a share of all responses, as a mean of 0.0 and 1.0 in single precision

_WORDS = {
    "reward/score": "mean reward {:.3f}",
    "reward/acc": "{:.1%} solved",
    "actor/loss": "loss {:.4f}",  # offline training, where a step has a response to train on
    "training/response_tokens": "{:.0f} response tokens",
    "timing_s/step": "{:.1f} s",
    "validation/accepted_log_prob": "validation: accepted responses {:.4f} nats a token",
    "validation/other_log_prob": "others {:.4f}",
}
"""What is shown of a step's metrics, in this order."""


def step_reporter(metrics: Path) -> Callable[[], bool]:
    """A function that logs a line for each new step in the metrics file, and says whether there was one.

    Args:
        metrics: The file, which need not exist yet; lines that it has at this call are not logged.
    """
    offset = metrics.stat().st_size if metrics.exists() else 0

    def report() -> bool:
        nonlocal offset
        if not metrics.exists():
            return False
        with metrics.open("rb") as file:
            file.seek(offset)
            lines = [line for line in file if line.endswith(b"\n")]
        offset += sum(map(len, lines))
        for record in map(json.loads, lines):
            logger.info("step %d: %s", record["step"], ", ".join(_words(record["metrics"])))
            if record["step"] == 1:
                _warn_of_thinking(record["metrics"])
        return bool(lines)

    return report


def _warn_of_thinking(metrics: dict[str, Any]) -> None:
    """Warn if no response of the first step has the form of a thinking that the reward requires."""
    flawed = metrics.get("reward/flaw_thinking", 0.0)
    if flawed and flawed + metrics.get("reward/no_code", 0.0) > _ALL:
        logger.warning(
            "no program of step 1 has exactly one </think> before it, so that each one loses 0.9 of its reward: if this"
            " model does not think, begin again in another folder with"
            " reward.custom_reward_function.reward_kwargs.require_thinking=false; if it thinks, responses may be cut"
            " off (data.max_response_length)"
        )


def _words(metrics: dict[str, Any]) -> list[str]:
    solved = validation_solved(metrics)
    words = [text.format(metrics[name]) for name, text in _WORDS.items() if name in metrics]
    return words if solved is None else [*words, f"validation {solved:.1%} solved"]
