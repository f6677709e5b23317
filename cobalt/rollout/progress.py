"""How far a rollout is, by what its engine was asked and has answered: responses, tokens, and the time left.

Problems would say less: many are worked on at a time, so that all may finish in the last minute.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from cobalt.engine import Call, Completion, Engine, GenerationSettings
from cobalt.episode import Message
from cobalt.stage.progress import Standing


class CountingEngine:
    """An engine whose answers are counted."""

    def __init__(self, engine: Engine, planned: int) -> None:
        """Count the answers of a run, of which `planned` is the number of responses."""
        self._engine, self._planned = engine, planned
        self._responses = self._tokens = 0
        self._began: float | None = None  # with the first call, when the engine has started

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """See `Engine.generate`."""
        self._began = _now() if self._began is None else self._began
        completions = await self._engine.generate(conversation, settings, call)
        self._responses += len(completions)
        self._tokens += sum(completion.completion_tokens for completion in completions)
        return completions

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`; without `device`, which decides only whether samples are seeded."""
        return {name: value for name, value in (await self._engine.describe()).items() if name != "device"}

    def standing(self) -> Standing:
        """How far the run is; the rest is expected to go on at the mean rate of responses so far."""
        seconds = 1e-9 if self._began is None else max(_now() - self._began, 1e-9)
        left = self._planned - self._responses
        words = [
            f"{self._tokens:,} tokens",
            f"{self._tokens / seconds:,.0f} tokens/s",
            f"{tqdm.format_interval(seconds)} so far",
        ]
        if self._responses and left:
            words.append(f"about {tqdm.format_interval(seconds * left / self._responses)} left")
        return Standing(self._responses, self._planned, ", ".join(words))


def _now() -> float:
    return asyncio.get_running_loop().time()
