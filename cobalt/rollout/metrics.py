"""Metrics over problems: unbiased pass@k, best of k, bootstrap intervals."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

RATES = (0.0, 1.0)
"""Bounds of a rate, such as pass@1."""

DIFFERENCES = (-1.0, 1.0)
"""Bounds of the difference of two rates."""

FEW_PROBLEMS = 30
"""Below this many problems a percentile bootstrap over problems is clearly too narrow, and tables say so."""

_LEVEL = 0.95
_RESAMPLES = 10_000
_CHUNK = 1_000  # number of resamples that are in memory as 64-bit numbers at a time


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of pass@k for one problem (Chen et al. 2021, arXiv 2107.03374, equation 1).

    1 - C(n - c, k) / C(n, k): the probability that k programs, drawn without replacement from `samples` (n) of which
    `correct` (c) are right, include a right one; 0 <= c <= n, and 1 <= k <= n.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def best_of_k(scores: Sequence[float], correct: Sequence[bool], k: int) -> float:
    """Exact probability that the best of k programs of one problem is correct, if a score chooses the best.

    The k programs are drawn without replacement. Of those with the highest score among them, one is chosen by lot. With
    g(s) programs of score s, and l(s) of a lower one, the highest score drawn is s with probability
    (C(l(s) + g(s), k) - C(l(s), k)) / C(n, k); then each program of that score is as likely as the others. k is 1 to n.
    """
    probability, lower = 0.0, 0
    for score in sorted(set(scores)):
        equal = [right for own, right in zip(scores, correct, strict=True) if own == score]
        ways = math.comb(lower + len(equal), k) - math.comb(lower, k)
        probability += ways / math.comb(len(scores), k) * (sum(equal) / len(equal))
        lower += len(equal)
    return probability


def bootstrap_interval(values: Sequence[float], *, bounds: tuple[float, float] | None = None) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean over problems; the same values give the same interval.

    Problems are resampled, not samples, because the samples of one problem are not independent of one another.

    Equal values have nothing to resample. With `bounds` their interval is the exact one: if a share q of all problems
    had another value, n problems would all have this one with probability (1 - q)^n, so that q is at most
    1 - 0.05^(1 / n), about 3 / n (the rule of three), and the other values lie within the bounds.

    Args:
        values: One value for each problem, for example its pass@1; at least one.
        bounds: Least and largest value that a problem can have (`RATES`, `DIFFERENCES`); None: not known.

    Returns:
        Lower and upper bound, in the unit of `values`.
    """
    array = np.asarray(values, dtype=np.float64)
    if bounds is not None and (array == array[0]).all():
        value, others = float(array[0]), 1 - (1 - _LEVEL) ** (1 / len(array))
        return value - others * (value - bounds[0]), value + others * (bounds[1] - value)
    counts = _resamples(len(array))
    sums = [counts[start : start + _CHUNK] @ array for start in range(0, _RESAMPLES, _CHUNK)]
    lower, upper = np.quantile(np.concatenate(sums) / len(array), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(lower), float(upper)


@lru_cache(maxsize=1)  # a report asks for many intervals over the same problems
def _resamples(problems: int) -> np.ndarray:
    """Count of each problem in each resample, [resample][problem]; the mean of a resample needs nothing else.

    The counts have the smallest integer type that holds them: 10,000 resamples of 6,000 problems are 60 million counts.
    """
    generator, shares = np.random.default_rng(0), np.full(problems, 1 / problems)
    counts = np.empty((_RESAMPLES, problems), np.min_scalar_type(problems))
    for start in range(0, _RESAMPLES, _CHUNK):
        rows = counts[start : start + _CHUNK]
        rows[:] = generator.multinomial(problems, shares, size=len(rows))
    return counts
