"""A line for each step of a training run, from its metrics file."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cobalt.report.curves import validation_solved

logger = logging.getLogger(__name__)

_ALL = 0.9999
"""A share of all responses, as a mean of 0.0 and 1.0 in single precision."""


def step_reporter(metrics: Path) -> Callable[[], bool]:
    """A function that logs a line for each new step in the metrics file, and says whether there was one.

    Args:
        metrics: The file, which need not exist yet; lines that it has at this call are not logged.
    """
    offset = metrics.stat().st_size if metrics.exists() else 0

    def report() -> bool:
        nonlocal offset
        if not metrics.exists() or metrics.stat().st_size == offset:
            return False
        begin = offset
        with metrics.open("rb") as file:
            file.seek(begin)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                record = json.loads(line)
                logger.info("step %d: %s", record["step"], ", ".join(_words(record["metrics"])))
                if record["step"] == 1:
                    _warn_of_thinking(record["metrics"])
        return offset > begin

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
