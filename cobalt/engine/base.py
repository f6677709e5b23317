"""The interface between the rollout loops and the engines that generate text. No engine is implemented here."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from cobalt.episode import Message, TemplateThinking
from cobalt.episode.trajectory import FinishReason
from cobalt.problems.problem import ProblemId


class GenerationSettings(BaseModel):
    """Settings by which completions are drawn; the defaults are those of the paper's code.

    Attributes:
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus probability.
        max_tokens: Largest number of tokens in one completion.
        n: Number of completions for one conversation.
        chat_template_thinking: The thinking option of the chat template; "default": not set, so that the template's
            own default holds (paper).
        seed: Seed of this one call; completion i of n has a random stream of its own. None: not reproducible.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(0.6, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_tokens: int = Field(8192, ge=1)
    n: int = Field(16, ge=1)
    chat_template_thinking: TemplateThinking = "default"
    seed: int | None = None


class Completion(BaseModel):
    """One completion.

    Attributes:
        text: The response; "" if there is none.
        finish_reason: "stop" (ended by itself), "length" (cut at a limit), "prompt_too_long" (the conversation
            left no room for a response; `message` has the numbers) or "error" (the provider withheld its answer).
        prompt_tokens: Number of tokens in the rendered conversation.
        completion_tokens: Number of generated tokens, including those of hidden reasoning.
        cached_tokens: Number of the prompt's tokens that the engine had computed before, for another sample or turn; 0
            if it does not say.
        cost: Price of this completion in US dollars; None if it is not known.
        message: Description of what went wrong; "" if nothing did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    finish_reason: FinishReason
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    message: str = ""


class Call(NamedTuple):
    """The part of a run that a generation is for; the call's seed and the lookup in a replay depend on it.

    Attributes:
        problem_id: The problem.
        turn: Number of programs before this one; 0 for the first turn.
        sample: Index of the conversation among those of the problem; None: the first turn of all of them at once.
    """

    problem_id: ProblemId
    turn: int
    sample: int | None = None


class Engine(Protocol):
    """The protocol of everything that continues conversations."""

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw `settings.n` completions for one conversation.

        Raises:
            ServiceDown: the engine is not running; the message says how to start it.
            InfrastructureError: the engine failed at every attempt.
        """
        ...

    async def describe(self) -> Mapping[str, Any]:
        """The model and settings that decide this engine's answers, for the run's manifest; raises as `generate`.

        An engine that runs a model itself adds `device`, "cpu" or "gpu", and the model's `name` in reports.
        """
        ...


def derive_seed(seed: int, call: Call) -> int:
    """A 31-bit seed for one call, from the run's seed and the call's problem, turn and sample, and nothing else."""
    text = repr((seed, *call))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
