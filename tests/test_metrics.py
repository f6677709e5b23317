"""pass@k is unbiased, and bootstrap intervals cover, repeat and shrink to a point where there is no spread."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.rollout.metrics import DIFFERENCES, RATES, bootstrap_interval, pass_at_k
from studies.seeds import over_runs


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_program(sizes):
    n, correct, k = sizes
    outcomes = [True] * correct + [False] * (n - correct)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize(("problems", "most"), [(1, 0.95), (3, 0.632), (30, 0.095), (300, 0.00994)])
def test_equal_values_are_their_interval_and_get_an_exact_bound_where_their_limits_are_known(problems, most):
    assert bootstrap_interval([0.25] * problems) == pytest.approx((0.25, 0.25))
    assert bootstrap_interval([0.0] * problems, bounds=RATES) == pytest.approx((0, most), rel=1e-2)
    assert bootstrap_interval([1.0] * problems, bounds=RATES) == pytest.approx((1 - most, 1), rel=1e-2)
    assert bootstrap_interval([0.0] * problems, bounds=DIFFERENCES) == pytest.approx((-most, most), rel=1e-2)


def test_the_exact_bound_covers_a_rare_success_as_often_as_it_says():
    # The worst case of the bound: with this rate, 20 problems have no success in 5 % of all draws.
    rate = 1 - 0.05 ** (1 / 20)
    draws = np.random.default_rng(0).binomial(1, rate, (4000, 20)).astype(float)
    none = draws[draws.sum(axis=1) == 0]
    assert 0.035 <= len(none) / len(draws) <= 0.065
    assert bootstrap_interval(list(none[0]), bounds=RATES)[1] == pytest.approx(rate)


def test_the_same_values_give_the_same_interval_and_it_holds_the_mean():
    values = [0.0, 0.1, 0.9, 1.0, 0.4, 0.3]
    lower, upper = bootstrap_interval(values)
    assert (lower, upper) == bootstrap_interval(list(values))
    assert lower <= statistics.mean(values) <= upper


def test_95_percent_intervals_cover_the_true_mean_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        lower, upper = bootstrap_interval(generator.binomial(16, 0.4, 100) / 16)
        covered += lower <= 0.4 <= upper
    assert 0.91 <= covered / 300 <= 0.98


# --- intervals over runs


def test_the_interval_over_runs_is_students():
    """With 2 and 3 runs the quantile has a closed form: tan(0.475 pi), and 0.95 sqrt(2 / (1 - 0.95^2))."""
    for values, quantile in (([1.0, 3.0], math.tan(0.475 * math.pi)), ([0.0, 2.0, 1.0], 0.95 * math.sqrt(2 / 0.0975))):
        runs = over_runs(values)
        assert runs.mean == (runs.lower + runs.upper) / 2 == pytest.approx(sum(values) / len(values))
        half = quantile * statistics.stdev(values) / math.sqrt(len(values))
        assert (runs.upper - runs.lower) / 2 == pytest.approx(half, rel=1e-4)


def test_one_run_has_no_interval_over_runs():
    assert over_runs([0.5]) is None
