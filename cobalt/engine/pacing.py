"""When the next request to a provider may start: the user's rate limit, and pauses that the provider asks for."""

import asyncio
import time
from collections.abc import Mapping


class Pacer:
    """Spreads requests evenly over time, and delays all of them while a provider asks for a pause.

    Args:
        requests_per_minute: Largest number of requests per minute, retries included; None: no limit.
    """

    def __init__(self, requests_per_minute: float | None = None) -> None:
        self._interval = 60 / requests_per_minute if requests_per_minute else 0.0
        self._next = 0.0
        self._resume = 0.0

    async def wait(self) -> None:
        """Return when a request may start."""
        now = time.monotonic()
        start = max(now, self._next, self._resume)
        self._next = start + self._interval
        while start > now:
            await asyncio.sleep(start - now)
            now = time.monotonic()
            start = max(start, self._resume)  # the provider may have asked for a pause meanwhile

    def pause(self, seconds: float) -> None:
        """Let no request start for this many seconds."""
        self._resume = max(self._resume, time.monotonic() + seconds)


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds of a `Retry-After` header; 0 without one, or where it is a date."""
    value = {name.lower(): text for name, text in headers.items()}.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        return 0.0
