"""VeRPO's dense rewards and advantages for a group of trajectories of one problem (arXiv 2601.03525).

A turn earns the weights of the tests that its program passes. A test weighs more if few programs of the group pass it,
and less if many other tests are passed equally often. Equations have their numbers in version 3 of the paper. Pure
functions in float64 on the outcomes of tests; no tokens, no torch, no judge. `docs/training.md` says which constants
the publications leave open.

Notation: the group of a problem has the trajectories τ_1, ..., τ_n. |τ_i| is the number of programs in τ_i, and
M = Σ_i |τ_i| their number in the group. p[i][t, j] is 1 if program t of trajectory i passes test j, else 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from pydantic import ConfigDict, Field

from cobalt.reward.offline import Floats, NotNegative
from cobalt.stage.records import checked

SMALLEST_SIGMA = 1e-6
"""Below this the kernel of equation 7 tells nothing but equal pass rates apart, and its square vanishes in the end."""

Bandwidth = Annotated[float, Field(strict=True, ge=SMALLEST_SIGMA, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class VerpoSettings:
    """VeRPO's constants.

    Attributes:
        alpha: α of equation 8, how fast a weight falls with the pass rate of its test; 2.0 (summaries of the paper).
        beta: β of equation 14, the weight of the turn's advantage. The publications do not give it; 1.0 is this
            project's choice.
        gamma: γ of equation 11, the factor for each program of a trajectory, in (0, 1]. The publications do not give
            it; 0.995 is that of a third-party implementation.
        sigma: σ of equation 7, the bandwidth of the density, `SMALLEST_SIGMA` or more. None: half the standard
            deviation of the group's pass rates, but at least `sigma_floor`. The publications do not give it; this rule
            is that of the third-party implementation.
        sigma_floor: Smallest bandwidth of that rule, `SMALLEST_SIGMA` or more; also used where all tests are passed
            equally often.
        delta: δ of equation 9, 0 or more. The publications do not give it; 1e-6 is that of the third-party
            implementation, which adds it to 2σ² in equation 7, too. Here it stands in equation 9 alone, as published.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    alpha: NotNegative = 2.0
    beta: NotNegative = 1.0
    gamma: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.995
    sigma: Bandwidth | None = None
    sigma_floor: Bandwidth = 1e-3
    delta: NotNegative = 1e-6

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The constants of a configuration; raises UserError, which names the first that is wrong."""
        return checked(cls, dict(values))


PUBLISHED = VerpoSettings()


def pass_rates(outcomes: Sequence[Floats]) -> Floats:
    """ρ_j = (1 / M) Σ_i Σ_t p[i][t, j], equation 3: the share of the group's programs that pass test j.

    `outcomes` is p, one array of shape (|τ_i|, tests) for each trajectory; the result has shape (tests,).
    """
    rates: Floats = np.concatenate([np.asarray(trajectory, np.float64) for trajectory in outcomes]).mean(axis=0)
    return rates


def difficulty_weights(rates: Floats, settings: VerpoSettings = PUBLISHED) -> Floats:
    """w'_j, what passing test j earns: its difficulty over the density of pass rates around its own.

        N_j = Σ_k exp(-(ρ_j - ρ_k)² / (2 σ²))        equation 7; k = j included, so N_j >= 1
        w_j = exp(-α ρ_j)                            equation 8
        w'_j = w_j / (N_j + δ)                       equation 9

    ρ and w' have the shape (tests,).
    """
    sigma = settings.sigma
    if sigma is None:
        sigma = max(float(np.std(rates)) / 2, settings.sigma_floor)
    apart = rates[:, None] - rates[None, :]
    density = np.exp(-(apart**2) / (2 * sigma**2)).sum(axis=1)
    weights: Floats = np.exp(-settings.alpha * rates) / (density + settings.delta)
    return weights


def advantages(outcomes: Sequence[Floats], solved: Sequence[bool], settings: VerpoSettings = PUBLISHED) -> list[Floats]:
    """A(i, t) = A_traj(i) + β A_turn(i, t), equation 14, for each program of a group.

        R_turn(i, t) = Σ_j w'_j p[i][t, j]                                equation 10, not divided by the tests
        A_turn(i, t) = R_turn(i, t) - (1 / M) Σ_k Σ_s R_turn(k, s)        equation 12
        A_traj(i)    = R_traj(i) γ^|τ_i| - (1 / n) Σ_k R_traj(k) γ^|τ_k|     equations 11 and 13

    Neither is divided by a standard deviation (equation 1 with F_norm = 1, the paper's default).

    Args:
        outcomes: p, as for `pass_rates`; each trajectory has at least one program.
        solved: R_traj: whether a trajectory passed every test. It earns less the more programs it took.
        settings: The constants.

    Returns:
        For each trajectory an array of shape (|τ_i|,): the advantage of every token of program t.
    """
    weights = difficulty_weights(pass_rates(outcomes), settings)
    of_turns = [np.asarray(trajectory, np.float64) @ weights for trajectory in outcomes]
    of_trajectories = np.array([done * settings.gamma ** len(own) for done, own in zip(solved, outcomes, strict=True)])
    mean_turn = np.concatenate(of_turns).mean()
    above_mean = of_trajectories - of_trajectories.mean()
    return [
        trajectory + settings.beta * (turns - mean_turn) for trajectory, turns in zip(above_mean, of_turns, strict=True)
    ]
