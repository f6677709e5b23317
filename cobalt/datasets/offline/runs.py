"""Runs of numbers (tokens, letters) as single numbers, so that what two texts share can be counted."""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def hashed_runs(numbers: Numbers, length: int) -> Numbers:
    """A 64-bit number for each run of `length` numbers, in their order; none if there are fewer numbers."""
    runs = np.zeros(max(0, len(numbers) - length + 1), dtype=np.uint64)
    for place in range(length):
        runs = runs * _FACTOR + numbers[place : place + len(runs)]
    return runs
