"""Settings of rollouts of several turns: `cobalt.multi_turn` of a composed configuration (cobalt_verl/config/rollout).

Read here for the checks before a training run, and by the agent loop (`cobalt_verl.agent_loops.multi_turn`).
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from cobalt.stage.errors import UserError

RewardedProgram = Literal["final", "best"]
"""Which program of a trajectory its reward is about: the last one, or the one with the highest reward."""

EpisodeEnd = Literal["never", "public_passed", "all_passed"]
"""What ends an episode before its last turn: nothing (as in evaluation), or a program that passes the public tests, or
one that passes all tests."""


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How the trajectories of online multi-turn training come about.

    Attributes:
        turns: Most responses of a trajectory, at least 1. Cobalt's collection has 3, VeRPO's multi-turn training 4.
        reward: Which program the trajectory's reward is about.
        stop: What ends an episode early.
        judge_every_turn: Whether every program is judged on all tests, because the estimator needs the outcomes. If
            not, programs are judged on the public tests, and on all tests where the reward or `stop` needs it.

    Raises:
        UserError: a value out of range.
    """

    turns: int
    reward: RewardedProgram = "final"
    stop: EpisodeEnd = "never"
    judge_every_turn: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.turns, int) or isinstance(self.turns, bool) or self.turns < 1:
            raise UserError(f"cobalt.multi_turn.turns is {self.turns!r}: it must be a whole number of 1 or more")
        for name, kind in (("reward", RewardedProgram), ("stop", EpisodeEnd)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                raise UserError(f"cobalt.multi_turn.{name} is {value!r}: it must be one of {', '.join(known)}")

    @property
    def all_tests_every_turn(self) -> bool:
        """Whether every program is judged on all tests."""
        return self.judge_every_turn or self.reward == "best" or self.stop == "all_passed"


def episode_settings(config: Any) -> EpisodeSettings | None:
    """The settings of a composed configuration; None where the rollout has one turn.

    Raises:
        UserError: a setting is unknown or out of range.
    """
    from omegaconf import OmegaConf

    section = OmegaConf.select(config, "cobalt.multi_turn")
    if section is None:
        return None
    every_turn = OmegaConf.select(config, "cobalt.judge_every_turn", default=False)
    if not isinstance(every_turn, bool):
        raise UserError(f"cobalt.judge_every_turn is {every_turn!r}: it must be true or false")
    try:
        return EpisodeSettings(**section, judge_every_turn=every_turn)
    except TypeError as error:  # not a mapping, or without turns, or with another setting
        raise UserError(f"cobalt.multi_turn has wrong settings: {error}") from None
