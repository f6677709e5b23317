"""An episode of a training row, with its judge and its reward: text in, the trajectory's reward out; no tokens.

The reward is that of single-turn training (`cobalt_verl.scoring`), for one program of the trajectory. A response that
the token limit cut off is a response like any other: its program is the block it was writing. A trajectory whose
context grew too long for its next turn has a final response without a program, as in evaluation.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cobalt.episode import Message, load_prompts
from cobalt.episode.episode import Episode, judge_response
from cobalt.episode.trajectory import Turn
from cobalt.episode.turns import program_of
from cobalt.judge import ExecResult, Judge
from cobalt.reward import RewardSettings
from cobalt.training.episodes import EpisodeSettings
from cobalt_verl.scoring import score, suite_of

_prompts = functools.cache(load_prompts)


@dataclass(slots=True)
class _Attempt:
    """A response of an episode and what its program is known to do, after `seconds` of judging on `tests` tests."""

    response: str  # as decoded
    seen: str  # as engines show it, with what the chat template opened in the prompt at its head
    all_tests: ExecResult | None = None
    public_pass_rate: float = 0.0
    seconds: float = 0.0
    tests: int = 0


@dataclass(frozen=True, slots=True)
class TrajectoryReward:
    """Reward that a trajectory earned.

    Attributes:
        parts: Of the reward (`cobalt_verl.scoring.score`), `score` among them, and counts of the trajectory.
        solved: Whether the program that the reward is about passes every test; with `best`, whether any program does.
        outcomes: For each turn whether its program passes each test; None where only public tests were run.
        seconds: Wall time of judging.
    """

    parts: dict[str, Any]
    solved: bool
    outcomes: list[list[bool] | None]
    seconds: float


class JudgedEpisode:
    """See the module; `respond` until `done`, then `reward`."""

    def __init__(
        self,
        fields: Mapping[str, Any],
        settings: EpisodeSettings,
        reward: RewardSettings,
        judge: Judge,
        *,
        opened: str = "",
    ) -> None:
        """Begin the episode of a row: `raw_prompt`, `reward_model.ground_truth`, `extra_info` with `episode`.

        `opened` is what the chat template opens in its prompts (`cobalt.episode.chat_template.opened_thinking`).
        """
        self._extra_info = fields["extra_info"]
        rules = self._extra_info["episode"]
        opening: list[Message] = [
            {"role": message["role"], "content": message["content"]} for message in fields["raw_prompt"]
        ]
        self._settings, self._reward, self._judge, self._opened = settings, reward, judge, opened
        self._tests = suite_of(fields["reward_model"]["ground_truth"])
        self._public = [int(index) for index in rules["public_tests"]]
        self._episode = Episode(
            opening,
            self._tests.select(self._public),
            _prompts(rules["prompts"]),
            turns=settings.turns,
            enable_thinking=bool(rules["enable_thinking"]),
            truncated_thinking=rules["truncated_thinking"],
        )
        self._attempts: list[_Attempt] = []
        self.done = False

    @property
    def messages(self) -> list[Message]:
        """The conversation so far: what the next response answers."""
        return self._episode.messages

    async def respond(self, response: str) -> None:
        """Take the policy's next response: judge its program, and answer with the first failing public test.

        If the outcome of all tests is needed in any case, the program is judged on all of them at once. A suite that
        the judge's `suite_seconds` ends then fails as a whole, its public tests included.

        Raises:
            InfrastructureError: the judge failed.
        """
        attempt = _Attempt(response, self._opened + response)
        self._attempts.append(attempt)
        if len(self._attempts) == self._settings.turns or self._settings.all_tests_every_turn:
            public = (await self._on_all_tests(attempt)).select(self._public)
        else:
            public = await self._on(attempt, self._public)
        attempt.public_pass_rate = public.pass_rate
        self._episode.observe(Turn(attempt.seen), public)
        solved = attempt.all_tests is not None and attempt.all_tests.all_passed
        stopped = {"never": False, "public_passed": public.all_passed, "all_passed": solved}[self._settings.stop]
        self.done = self._episode.done or stopped

    async def reward(self, *, too_long: bool) -> TrajectoryReward:
        """Reward of the trajectory, once it has a response; `too_long`: its context grew too long for another one.

        Earlier programs of the trajectory do not count as `prev_best_pass_rate`, which is about those in the row's
        prompt.

        Raises:
            InfrastructureError: the judge failed.
        """
        rewarded = [] if too_long else self._attempts[-1:]
        if self._settings.reward == "best":
            rewarded = self._attempts
        scores = [await self._score(attempt) for attempt in rewarded]
        if not scores:
            scores.append(score("", None, self._extra_info, 0.0, self._reward))
        return TrajectoryReward(
            max(scores, key=lambda parts: parts["score"]) | self._counts(too_long=too_long),
            any(parts["acc"] == 1.0 for parts in scores),
            [None if attempt.all_tests is None else list(attempt.all_tests.passing) for attempt in self._attempts],
            sum(attempt.seconds for attempt in self._attempts),
        )

    async def _score(self, attempt: _Attempt) -> dict[str, Any]:
        result = await self._on_all_tests(attempt)
        known = None if program_of(attempt.seen) is None else result
        return score(attempt.response, known, self._extra_info, attempt.seconds, self._reward)

    async def _on_all_tests(self, attempt: _Attempt) -> ExecResult:
        """The result of a response on all tests, new or known."""
        if attempt.all_tests is None:
            attempt.all_tests = await self._on(attempt, range(len(self._tests)))
        return attempt.all_tests

    async def _on(self, attempt: _Attempt, tests: Sequence[int]) -> ExecResult:
        """Judge a response on some tests; without a program every test fails, and none is run."""
        started = time.perf_counter()
        result = await judge_response(self._judge, attempt.seen, self._tests.select(tests))
        attempt.seconds += time.perf_counter() - started
        attempt.tests += 0 if program_of(attempt.seen) is None else len(tests)
        return result

    def _counts(self, *, too_long: bool) -> dict[str, float]:
        """Counts of the trajectory and its cost; a turn that was not taken has the public pass rate of the last one."""
        rates = [attempt.public_pass_rate for attempt in self._attempts]
        rates += rates[-1:] * (self._settings.turns - len(rates))
        return {
            "turns": float(len(self._attempts)),
            "context_too_long": float(too_long),
            "judged_tests": float(sum(attempt.tests for attempt in self._attempts)),
            **{f"public_pass_rate_turn_{turn}": rate for turn, rate in enumerate(rates)},
        }
