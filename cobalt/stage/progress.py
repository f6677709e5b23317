"""Progress of long work: a bar in a terminal, and a line every 30 seconds and at the end in a log file."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINE_SECONDS = 30.0
"""Seconds between two lines of a log file."""

_BAR_SECONDS = 1.0
_LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s [{elapsed}<{remaining}]"


class _ProgressLines(tqdm):  # type: ignore[type-arg]  # generic only for type checkers
    """A tqdm that logs lines instead of drawing a bar."""

    def display(self, *_: Any, **__: Any) -> None:
        """Log how far the work is."""
        logger.info("%s", str(self))  # now: it goes on

    def close(self) -> None:
        """Log the last line, unless nothing was done."""
        if not self.disable:
            if self.n > self.initial:
                self.display()
            self.disable = True


def track(iterable: Any = None, **options: Any) -> Any:
    """A `tqdm` of these arguments if standard error is a terminal, otherwise one that logs lines.

    Without an iterable `update` is called by hand. The options are tqdm's `total`, `initial`, `desc` and `unit`.
    """
    if sys.stderr.isatty():
        return tqdm(iterable, **options)
    # After each item tqdm looks at the clock. Its monitor never forces a line, and none comes at the start.
    rare = {"mininterval": LINE_SECONDS, "maxinterval": float("inf"), "miniters": 1, "delay": 1e-9}
    return _ProgressLines(iterable, **{"bar_format": _LINE} | rare | options)


@contextlib.asynccontextmanager
async def ticking(state: Callable[[], tuple[int, int, str]], *, desc: str, unit: str) -> AsyncIterator[None]:
    """Show how far asynchronous work is while the block runs, whether or not anything finishes meanwhile.

    `state` gives the units that are done, the units in all, and more in words, such as the time left.
    A terminal has a line that is drawn every second. Elsewhere a line is logged every `LINE_SECONDS`, and one more at
    the end if anything was done. `unit` is in the singular.
    """
    layout = "{desc}: {percentage:3.0f} %, {n_fmt} of {total_fmt} {unit}s{postfix}"
    bar = track(total=state()[1], desc=desc, unit=unit, bar_format=layout)

    def show(*, drawn: bool = True) -> None:
        bar.n, bar.total, words = state()
        bar.set_postfix_str(words, drawn)

    async def tick() -> None:
        while True:
            await asyncio.sleep(_BAR_SECONDS if sys.stderr.isatty() else LINE_SECONDS)
            show()

    ticker = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticker.cancel()
        show(drawn=False)
        bar.close()
