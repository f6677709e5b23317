"""How far a rollout is, by what its engine was asked and has answered: responses, tokens, and the time left.

Problems would say less: many are worked on at a time, so that all may finish in the last minute.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from cobalt.engine import Call, Completion, Engine, GenerationSettings
from cobalt.episode import Message
from cobalt.problems.problem import ProblemId
from cobalt.stage.progress import Standing


class CountingEngine:
    """An engine, with everything counted that it has answered.

    Attributes:
        planned: The problems to work on, each with the number of its responses.
        prompt_tokens: Of every completion.
        cached_tokens: Those of them that the engine had computed before, for another sample or turn.
        completion_tokens: Of every completion.
        responses: Number of completions.
    """

    def __init__(self, engine: Engine, planned: Mapping[ProblemId, int]) -> None:
        """Count the calls of a run: the engine, and how many responses each problem of the run will have."""
        self.planned = dict(planned)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.responses = 0
        self._engine = engine
        self._answered: Counter[ProblemId] = Counter()
        self._began = 0.0
        self._total = 0
        self._problems = 0
        self._problems_done = 0

    def begin(self, done: Collection[ProblemId]) -> None:
        """Begin to measure time, for all problems but those that are done."""
        left = [responses for problem, responses in self.planned.items() if problem not in done]
        self._problems, self._total = len(left), sum(left)
        self._began = _now()

    def end(self, problem: ProblemId) -> None:
        """Count a problem as done. If it failed, its further responses are not expected any more."""
        self._problems_done += 1
        self._total += self._answered[problem] - self.planned[problem]
        self.planned[problem] = self._answered[problem]

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """See `Engine.generate`."""
        completions = await self._engine.generate(conversation, settings, call)
        self._answered[call.problem_id] += len(completions)
        unplanned = self._answered[call.problem_id] - self.planned[call.problem_id]
        if unplanned > 0:  # another sample of the problem has failed
            self._total += unplanned
            self.planned[call.problem_id] += unplanned
        self.responses += len(completions)
        self.prompt_tokens += sum(completion.prompt_tokens for completion in completions)
        self.cached_tokens += sum(completion.cached_tokens for completion in completions)
        self.completion_tokens += sum(completion.completion_tokens for completion in completions)
        return completions

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`; without `device`, which decides only whether samples are seeded."""
        return {name: value for name, value in (await self._engine.describe()).items() if name != "device"}

    def standing(self) -> Standing:
        """How far the run is. The time left is what the responses to come take at the rate of those that came."""
        seconds = max(_now() - self._began, 1e-9)
        words = [
            f"{self._problems_done} of {self._problems} problems",
            f"{self.completion_tokens:,} tokens",
            f"{self.completion_tokens / seconds:,.0f} tokens/s",
            f"{tqdm.format_interval(seconds)} so far",
        ]
        if self.responses and self._problems_done < self._problems:
            left = seconds * (self._total - self.responses) / self.responses
            words.append(f"about {tqdm.format_interval(left)} left")
        return Standing(self.responses, self._total, ", ".join(words))


def _now() -> float:
    return asyncio.get_running_loop().time()
