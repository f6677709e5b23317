"""The interface between the loops and whatever generates text. No engine is implemented here."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from cobalt.conversation import Message, TemplateThinking
from cobalt.problem import ProblemId
from cobalt.trajectory import FinishReason as FinishReason


class GenerationSettings(BaseModel):
    """How completions are drawn; the defaults are those of the paper's code.

    Attributes:
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus probability.
        max_tokens: Most tokens of one completion.
        n: Completions for one conversation.
        chat_template_thinking: What the chat template is told about thinking; "default": nothing, so that its own
            default holds (paper).
        seed: Seed of this one call; completion i of n draws from a stream of its own. None: not reproducible.
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
        text: The response; "" when there is none.
        finish_reason: "stop" (ended by itself), "length" (cut at a limit), "prompt_too_long" (the conversation
            left no room for a response; `message` gives the figures) or "error" (a replayed response is missing, or
            the provider withheld its answer).
        prompt_tokens: Tokens of the rendered conversation.
        completion_tokens: Tokens generated, those of a hidden reasoning included.
        cost: What the provider charges for this completion, in US dollars; None where that is not known.
        message: What went wrong; "" when nothing did.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    finish_reason: FinishReason
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    message: str = ""


class Call(NamedTuple):
    """Which part of a run a generation is for: it seeds the call, and finds the recorded answer in a replay.

    Attributes:
        problem_id: The problem.
        turn: How many programs came before, 0 for the first turn.
        sample: Which conversation of the problem; None asks for the first turn of all of them at once.
    """

    problem_id: ProblemId
    turn: int
    sample: int | None = None


class Engine(Protocol):
    """Anything that continues conversations."""

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw `settings.n` completions for one conversation.

        Raises:
            ServiceDown: the engine is not running; the message says how to start it.
            InfrastructureError: the engine failed, also when asked again.
        """
        ...

    async def describe(self) -> Mapping[str, Any]:
        """What decides this engine's answers (model and its settings), for the run's manifest.

        Raises:
            ServiceDown: the engine is not running; the message says how to start it.
        """
        ...


def derive_seed(seed: int, call: Call) -> int:
    """A 31-bit seed for one call, from the run's seed and what tells the call from all others.

    It depends on nothing else, so a record comes out the same whichever records are made beside it.
    """
    text = repr((seed, *call))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
