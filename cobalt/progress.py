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

    def __init__(self, *args: Any, **options: Any) -> None:
        # tqdm's own pace: it looks at the clock after each item, and its monitor never forces a line.
        super().__init__(*args, **options, mininterval=LINE_SECONDS, maxinterval=float("inf"), miniters=1, delay=1e-9)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Log where the work is."""
        facts = self.format_dict
        done, total, elapsed = facts["n"], facts["total"], facts["elapsed"]
        share = f"{done} of {total}" if total else f"{done}"
        left = ""
        if total and done - facts["initial"] > 0 and done < total:
            left = f", about {tqdm.format_interval((total - done) * elapsed / (done - facts['initial']))} left"
        after = f", {self.postfix}" if self.postfix else ""
        logger.info(
            "%s: %s %ss in %s%s%s", self.desc.rstrip(": "), share, self.unit, tqdm.format_interval(elapsed), left, after
        )
        return True

    def close(self) -> None:
        """Log the last line."""
        if self.disable:
            return
        self.display()
        self.disable = True
        self._decr_instances(self)


def track(iterable: Any = None, **options: Any) -> Any:
    """A `tqdm` of these arguments if standard error is a terminal, otherwise one that logs lines.

    Args:
        iterable: Items to go through; None: `update` is called by hand.
        options: tqdm's `total`, `initial`, `desc`, `unit`.
    """
    kind = tqdm if sys.stderr.isatty() else _ProgressLines
    return kind(iterable, **options)
