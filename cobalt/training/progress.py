"""Report a training run to the user: a line for each step, from its metrics file, and how far the step is.

train.log has all output. It has the second line as well, every half minute.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from cobalt.report.curves import validation_solved
from cobalt.training.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

_SECONDS = 30.0
"""Time between two lines on how far a step is."""

_ALL = 0.9999
"""A share of all responses, as a mean of 0.0 and 1.0 in single precision."""


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
                if record["step"] == 1:
                    _warn_of_thinking(record["metrics"])

    return report


@contextlib.contextmanager
def phase_reporter(
    heartbeat: Heartbeat, write: Callable[[str], None], seconds: float = _SECONDS
) -> Iterator[Callable[[], None]]:
    """Report how far a run is while the block runs; yields a function to be called about once a second.

    On a terminal there is one line with a bar, which stays below the messages of the log. Elsewhere each line is a
    message.

    Args:
        heartbeat: The run's signs of work; someone else looks at them.
        write: Gets a line every `seconds` seconds, if anything has changed since the last one.
        seconds: See `write`.
    """
    # `cobalt.stage.cli` has this handler for terminals alone.
    console = next(
        (handler.console for handler in logging.getLogger().handlers if isinstance(handler, RichHandler)), None
    )
    last, told = time.monotonic(), heartbeat.state

    def tell() -> None:
        nonlocal last, told
        if time.monotonic() - last >= seconds and heartbeat.state != told:
            last, told = time.monotonic(), heartbeat.state
            write(heartbeat.line())
            if console is None:
                logger.info("%s", heartbeat.line())

    if console is None:
        yield tell
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("start", total=None)

        def show() -> None:
            tell()
            state = heartbeat.state
            done, total = (
                (state.micro_batch, state.micro_batches) if state.micro_batches else (state.samples, state.samples_of)
            )
            progress.update(bar, description=heartbeat.line(), completed=done, total=total or None)

        yield show


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
