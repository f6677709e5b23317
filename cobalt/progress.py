"""Progress of long work: a bar in a terminal, and a line every 30 seconds and at the end in a log file."""

import logging
import sys
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINE_SECONDS = 30.0
"""Seconds between two lines of a log file."""


class _ProgressLines(tqdm):  # type: ignore[type-arg]  # generic only for type checkers
    """A tqdm that logs lines instead of drawing a bar."""

    def display(self, *_: Any, **__: Any) -> None:
        """Log where the work is."""
        facts = self.format_dict
        done, total, elapsed = facts["n"], facts["total"], facts["elapsed"]
        new = done - facts["initial"]
        left = f", about {tqdm.format_interval((total - done) * elapsed / new)} left" if total and new > 0 else ""
        logger.info(
            "%s: %s %ss in %s%s%s",
            self.desc.rstrip(": "),
            f"{done} of {total}" if total else done,
            self.unit,
            tqdm.format_interval(elapsed),
            left if done != total else "",
            f", {self.postfix}" if self.postfix else "",
        )

    def close(self) -> None:
        """Log the last line, unless nothing was done."""
        if not self.disable:
            if self.n > self.initial:
                self.display()
            self.disable = True


def track(iterable: Any = None, **options: Any) -> Any:
    """A `tqdm` of these arguments if standard error is a terminal, otherwise one that logs lines.

    Args:
        iterable: Items to go through; None: `update` is called by hand.
        options: tqdm's `total`, `initial`, `desc`, `unit`.
    """
    if sys.stderr.isatty():
        return tqdm(iterable, **options)
    # After each item tqdm looks at the clock. Its monitor never forces a line, and none comes at the start.
    return _ProgressLines(
        iterable, mininterval=LINE_SECONDS, maxinterval=float("inf"), miniters=1, delay=1e-9, **options
    )
