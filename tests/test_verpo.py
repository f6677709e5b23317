"""VeRPO's weights, rewards and advantages: hand-computed groups, a reference in plain float64, and their laws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.reward import verpo
from cobalt.reward.verpo import VerpoSettings
from cobalt.stage.errors import UserError

# Two trajectories of two programs each, three tests: M = 4, so that the pass rates are 1, 1/2 and 1/4.
HAND = [np.array([[1, 0, 0], [1, 1, 0]]), np.array([[1, 0, 0], [1, 1, 1]])]
HAND_SOLVED = [False, True]
HAND_SETTINGS = VerpoSettings(alpha=2, beta=0.5, gamma=0.9, sigma=0.25, delta=0)
# With sigma = 1/4 the densities are 1 + e^-2 + e^-4.5, 1 + e^-2 + e^-0.5 and 1 + e^-4.5 + e^-0.5, and the difficulties
# e^-2, e^-1 and e^-0.5.
HAND_WEIGHTS = [0.1180479, 0.2111985, 0.3749479]
# The turns earn w1, w1 + w2, w1 and w1 + w2 + w3, the trajectories 0 and 0.81.
HAND_ADVANTAGES = [[-0.5046681, -0.3990689], [0.3053319, 0.5984051]]


def groups(tests):
    """Groups of trajectories of unequal lengths with as many tests."""
    program = st.lists(st.booleans(), min_size=tests, max_size=tests)
    return st.lists(st.lists(program, min_size=1, max_size=4), min_size=1, max_size=5)


def solved(group):
    return [all(trajectory[-1]) for trajectory in group]


def reference(group, settings):
    """Weights and advantages written out sum by sum, equations 3 and 7 to 14."""
    tests, programs = len(group[0][0]), sum(map(len, group))
    rho = [sum(program[j] for trajectory in group for program in trajectory) / programs for j in range(tests)]
    mean = sum(rho) / tests
    sigma = settings.sigma or max(math.sqrt(sum((r - mean) ** 2 for r in rho) / tests) / 2, settings.sigma_floor)
    density = [sum(math.exp(-((a - b) ** 2) / (2 * sigma * sigma)) for b in rho) for a in rho]
    weights = [math.exp(-settings.alpha * r) / (n + settings.delta) for r, n in zip(rho, density, strict=True)]
    turns = [[sum(w for w, passed in zip(weights, p, strict=True) if passed) for p in group_i] for group_i in group]
    paths = [done * settings.gamma ** len(path) for done, path in zip(solved(group), group, strict=True)]
    mean_turn, mean_path = sum(map(sum, turns)) / programs, sum(paths) / len(paths)
    advantages = [
        [path - mean_path + settings.beta * (turn - mean_turn) for turn in of_path]
        for path, of_path in zip(paths, turns, strict=True)
    ]
    return weights, advantages


def test_a_group_computed_by_hand():
    rates = verpo.pass_rates(HAND)
    assert rates.tolist() == [1, 0.5, 0.25]
    assert verpo.difficulty_weights(rates, HAND_SETTINGS) == pytest.approx(HAND_WEIGHTS, abs=1e-6)
    for ours, by_hand in zip(verpo.advantages(HAND, HAND_SOLVED, HAND_SETTINGS), HAND_ADVANTAGES, strict=True):
        assert ours == pytest.approx(by_hand, abs=1e-6)


@given(
    st.integers(1, 8).flatmap(groups),
    st.sampled_from([VerpoSettings(), HAND_SETTINGS, VerpoSettings(alpha=0.5, beta=2, delta=0.1)]),
)
def test_weights_and_advantages_are_those_of_the_reference(group, settings):
    weights, advantages = reference(group, settings)
    assert verpo.difficulty_weights(verpo.pass_rates(group), settings) == pytest.approx(weights, abs=1e-9)
    ours = verpo.advantages(group, solved(group), settings)
    for found, expected in zip(ours, advantages, strict=True):
        assert found.dtype == np.float64
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", "two"),
        ("beta", -1.0),
        ("delta", float("nan")),
        ("gamma", 0.0),
        ("gamma", 2.0),
        ("sigma", 0.0),
        ("sigma_floor", 0.0),
    ],
)
def test_constants_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=f"{name} is {value!r}"):
        VerpoSettings(**{name: value})
