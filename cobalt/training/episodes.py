"""Settings of rollouts of several turns: `cobalt.multi_turn` of a composed configuration (cobalt_verl/config/rollout).

Read here for the checks before a training run, and by the agent loop (`cobalt_verl.agent_loops.multi_turn`).
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from cobalt.stage.errors import UserError


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid"))
class EpisodeSettings:
    """Settings of the trajectories of online multi-turn training."""

    turns: Annotated[int, Field(ge=1)]
    """Most responses of a trajectory. Cobalt's collection has 3, VeRPO's multi-turn training 4."""
    reward: Literal["final", "best"] = "final"
    """Program of a trajectory that its reward is about: the last one, or the one with the highest reward."""
    stop: Literal["never", "public_passed", "all_passed"] = "never"
    """Event that ends an episode before its last turn: none (as in evaluation), or a program that passes such tests."""
    judge_every_turn: bool = False
    """Whether every program is judged on all tests, because the estimator needs the outcomes. If not, programs are
    judged on the public tests, and on all tests where the reward or `stop` needs it."""

    @property
    def all_tests_every_turn(self) -> bool:
        """Whether every program is judged on all tests."""
        return self.judge_every_turn or self.reward == "best" or self.stop == "all_passed"


def episode_settings(config: Any) -> EpisodeSettings | None:
    """The settings of a composed configuration (UserError: one is wrong); None where the rollout has one turn."""
    if (own := config.cobalt.get("multi_turn")) is None:
        return None
    try:
        return EpisodeSettings(**{"judge_every_turn": config.cobalt.get("judge_every_turn", False), **own})
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"cobalt.multi_turn: {first['loc'][-1]} is {first['input']!r}: {first['msg']}") from None
