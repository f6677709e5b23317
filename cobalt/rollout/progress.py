"""How far a rollout is, by what its engine was asked and has answered: responses, tokens, and the time left.

Problems would say less: many are worked on at a time, so that all may finish in the last minute.
"""

import asyncio
import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tqdm import tqdm

from cobalt.engine import Call, Completion, Engine, GenerationSettings
from cobalt.episode import Message
from cobalt.problems.problem import ProblemId
from cobalt.stage.progress import Standing


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A call that has no answer yet: when it began, in seconds of the event loop, its responses, and its turn."""

    began: float
    responses: int
    turn: int


class CountingEngine:
    """An engine, with everything counted that it was asked and has answered.

    Attributes:
        planned: The problems to work on, each with the number of its responses.
        prompt_tokens: Of every completion.
        cached_tokens: Those of them that the engine had computed before, for another sample or turn.
        completion_tokens: Of every completion.
        responses: Number of completions.
    """

    def __init__(self, engine: Engine, planned: Mapping[ProblemId, int], *, turns: int, max_tokens: int) -> None:
        """Count the calls of a run.

        Args:
            engine: Generates.
            planned: The responses of each problem of the run.
            turns: Programs of a conversation, the first one included.
            max_tokens: Longest completion, in tokens.
        """
        self._engine = engine
        self.planned = dict(planned)
        self._turns = turns
        self._max_tokens = max_tokens
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.responses = 0
        self._asked: set[_Asked] = set()
        self._call_seconds = 0.0
        self._response_seconds = 0.0
        self._durations: list[float] = []  # of calls, ascending
        self._longest_tokens = 0
        self._ended = 0
        self._answered: Counter[ProblemId] = Counter()
        self._began = 0.0
        self._total = 0
        self._problems = 0
        self._problems_begun: set[ProblemId] = set()
        self._problems_done = 0

    def begin(self, done: Collection[ProblemId]) -> None:
        """Begin to measure time, for all problems but those that are done."""
        self.planned = {problem: number for problem, number in self.planned.items() if problem not in done}
        self._problems, self._total = len(self.planned), sum(self.planned.values())
        self._began = _now()

    def end(self, problem: ProblemId) -> None:
        """Count a problem as done. If it failed, its further responses are not expected any more."""
        self._problems_done += 1
        self._problems_begun.add(problem)  # also if it failed before its first call
        self._total -= self.planned.pop(problem) - self._answered.pop(problem, 0)

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """See `Engine.generate`."""
        self._problems_begun.add(call.problem_id)
        asked = _Asked(_now(), settings.n, call.turn)
        self._asked.add(asked)
        try:
            completions = await self._engine.generate(conversation, settings, call)
        finally:
            self._asked.remove(asked)
        seconds = _now() - asked.began
        self._call_seconds += seconds
        insort(self._durations, seconds)
        self._response_seconds += seconds * len(completions)
        self._longest_tokens += max(completion.completion_tokens for completion in completions)
        self._ended += sum(completion.finish_reason != "length" for completion in completions)
        if call.problem_id in self.planned:
            self._answered[call.problem_id] += len(completions)
        else:  # another sample of the problem has failed
            self._total += len(completions)
        self.responses += len(completions)
        self.prompt_tokens += sum(completion.prompt_tokens for completion in completions)
        self.cached_tokens += sum(completion.cached_tokens for completion in completions)
        self.completion_tokens += sum(completion.completion_tokens for completion in completions)
        return completions

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`; without `device`, which decides only whether samples are seeded."""
        return {name: value for name, value in (await self._engine.describe()).items() if name != "device"}

    def seconds_left(self) -> float | None:
        """Expected time until the last response; None before the first one.

        A response in flight is expected to take as long as those that took longer than it has taken so far; if there
        are none, as long again as an average one, but not longer than `max_tokens` tokens take. With responses that
        have not begun, they share the number of responses that were in flight on average. The turns of a conversation
        follow one another, and the slowest of those in flight may take longer than that.
        """
        if not self.responses:
            return None
        now = _now()
        finished = self._response_seconds / self.responses
        longest = self._max_tokens * self._call_seconds / self._longest_tokens if self._longest_tokens else math.inf
        sums = [0.0, *accumulate(reversed(self._durations))]  # of the longest calls

        def rest_of(age: float) -> float:
            longer = len(self._durations) - bisect_right(self._durations, age)
            return sums[longer] / longer - age if longer else min(finished, max(0.0, longest - age))

        def longest_rest_of(age: float) -> float:
            longer = len(self._durations) - bisect_right(self._durations, age)
            return self._durations[-max(1, 2 * longer // (len(self._asked) + 1))] - age if longer else rest_of(age)

        in_flight = [(asked, now - asked.began, rest_of(now - asked.began)) for asked in self._asked]
        number = sum(asked.responses for asked, _, _ in in_flight)
        spent = self._response_seconds + sum(asked.responses * age for asked, age, _ in in_flight)
        if spent <= 0:  # a replay
            return 0.0
        to_come = sum(asked.responses * rest for asked, _, rest in in_flight)
        mean = (spent + to_come) / (self.responses + number)
        work = to_come + mean * (self._total - self.responses - number)
        # If responses go on ending by themselves at the rate at which they did so far.
        reaching = sum(
            asked.responses * math.exp(-max(0.0, longest - age) * self._ended / spent) for asked, age, _ in in_flight
        )
        chains = [
            (longest - age if reaching > number / 4 else longest_rest_of(age)) + mean * (self._turns - 1 - asked.turn)
            for asked, age, _ in in_flight
        ]
        if len(self._problems_begun) < self._problems:
            chains.append(mean * self._turns)
        return max(work * (now - self._began) / spent, *chains, 0.0)

    def standing(self) -> Standing:
        """How far the run is."""
        seconds = max(_now() - self._began, 1e-9)
        words = [
            f"{self._problems_done} of {self._problems} problems",
            f"{self.completion_tokens:,} tokens",
            f"{self.completion_tokens / seconds:,.0f} tokens/s",
            f"{tqdm.format_interval(seconds)} so far",
        ]
        left = self.seconds_left()
        if left is not None and self._problems_done < self._problems:
            words.append(f"about {tqdm.format_interval(left)} left")
        return Standing(self.responses, self._total, ", ".join(words))


def _now() -> float:
    return asyncio.get_running_loop().time()
