"""Advantages of responses that were judged before training, from the rewards of their group (arXiv 2605.28409).

The policy gradient of a group is sum over i of A_i grad log pi(y_i | x). The functions here give A; the loss is in
`cobalt_verl.losses.offline`. Pure functions in float64, one group at a time, no tokens and no torch. The paper's text
was not available in full: `docs/offline_rl.md` says which constants are assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field

from cobalt.stage.errors import UserError
from cobalt.stage.records import checked

Floats = npt.NDArray[np.float64]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]

OfflineEstimator = Literal["sft", "rloo", "grpo", "exponential"]
"""sft: accepted responses alone, each with the same weight (the paper's baseline). rloo: the reward less the mean of
the others. grpo: the reward less the mean, over the standard deviation. exponential: exp(beta x grpo)."""

EPSILON = 1e-6
"""Added to the standard deviation, as veRL does."""


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    """Settings that decide the loss of offline training.

    Attributes:
        estimator: See `OfflineEstimator`.
        beta: Of the exponential advantages, above 0. The paper does not give it; 1.0 is this project's choice.
        clip: Width of the importance ratio against the starting policy, above 0 and below 1: tokens outside
            [1 - clip, 1 + clip] get no gradient that would move them further. None: no importance ratio, as the paper.
        kl: Weight of the penalty for leaving the starting policy (`cobalt_verl.losses.offline`), 0 or more; 0.0: none,
            as the paper.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    estimator: OfflineEstimator = "rloo"
    beta: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] = 1.0
    clip: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = None
    kl: NotNegative = 0.0

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The settings of a configuration; raises UserError, which names the first that is wrong."""
        settings = checked(cls, dict(values))
        if settings.estimator == "sft" and settings.clip is not None:
            raise UserError("field 'clip': leave it out with the estimator sft, which has no ratio")
        return settings

    @property
    def needs_start(self) -> bool:
        """Whether the loss needs the log-probs of the starting policy."""
        return self.clip is not None or self.kl > 0


def group_normalised(rewards: Floats) -> Floats:
    """A_i = (R_i - mean R) / (std R + 1e-6), the standard deviation with k - 1 in its denominator (GRPO, as veRL).

    Of shape (responses), at least two; they add up to 0.
    """
    normalised: Floats = (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON)
    return normalised


def exponential(rewards: Floats, beta: float) -> Floats:
    """A_i = exp(beta x GRPO's A_i), above 0: every response is imitated, better ones more."""
    return np.exp(beta * group_normalised(rewards))


def offline_advantages(settings: OfflineSettings, rewards: Floats, accepted: npt.NDArray[np.bool_]) -> Floats:
    """The advantages of a group's responses, at least two, from rewards and acceptance; 0 for those not trained on."""
    match settings.estimator:
        case "sft":
            return accepted.astype(np.float64)
        case "rloo":
            above_others: Floats = (rewards - rewards.mean()) * (len(rewards) / (len(rewards) - 1))
            return above_others  # each reward less the mean of the others
        case "grpo":
            return group_normalised(rewards)
        case "exponential":
            return exponential(rewards, settings.beta)
