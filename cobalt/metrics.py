"""Metrics over problems: the unbiased pass@k estimator and bootstrap confidence intervals."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of pass@k for one problem (Chen et al. 2021, arXiv 2107.03374, equation 1).

    Args:
        samples: How many programs were drawn for the problem (n).
        correct: How many of them are right (c).
        k: How many attempts the metric allows; 1 <= k <= n.

    Returns:
        1 - C(n - c, k) / C(n, k): the chance that k programs drawn without replacement hold a right one.

    Raises:
        ValueError: the three numbers do not fit together.
    """
    if not 0 <= correct <= samples:
        raise ValueError(f"correct={correct} must lie between 0 and samples={samples}")
    if not 1 <= k <= samples:
        raise ValueError(f"k={k} must lie between 1 and samples={samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def bootstrap_interval(
    values: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over problems.

    Problems are resampled, not samples: the samples of one problem are not independent of one another.

    Args:
        values: One value a problem, for example its pass@1.
        level: Coverage, between 0 and 1.
        resamples: Bootstrap resamples.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        Lower and upper bound, in the unit of `values`.

    Raises:
        ValueError: `values` is empty.
    """
    if len(values) == 0:
        raise ValueError("an interval needs at least one value")
    array = np.asarray(values, dtype=np.float64)
    means = _resamples(len(array), resamples, seed) @ array / len(array)
    lower, upper = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(lower), float(upper)


@lru_cache(maxsize=1)  # a report asks for many intervals over the same problems
def _resamples(problems: int, resamples: int, seed: int) -> np.ndarray:
    """How often each resample draws each problem, [resample][problem]; the mean of a resample needs nothing else."""
    return np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), size=resamples)
