"""A policy in plain torch: it samples, and says how probable its samples are, in this process and without a service.

For small models on a CPU: the pocket world's first look at its seed model, and `cobalt.method`. Conversations that wait
for the policy at the same time are one batch. vLLM is the engine for everything else (`vllm_engine`).
"""

import asyncio
import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.episode import Message
from cobalt.episode.chat_template import end_of_turn, render_prompts, template_arguments


@dataclass(frozen=True, slots=True)
class Sample:
    """A response as tokens.

    Attributes:
        prompt: The tokens of the rendered conversation.
        response: The generated tokens, with the end of turn if it came.
        text: The response as text, without special tokens.
        finished: Whether the end of turn came within the limit on tokens.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    text: str
    finished: bool


@dataclass(slots=True)
class _Request:
    """One sample that somebody waits for."""

    prompt: tuple[int, ...]
    settings: GenerationSettings
    random: random.Random
    response: list[int] = field(default_factory=list)
    done: bool = False


class TorchPolicy:
    """A causal language model with its tokenizer; an `Engine`.

    Attributes:
        model: The transformers model, in float32.
        tokenizer: Its tokenizer.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._end = end_of_turn(tokenizer, {})
        self._waiting: list[_Request] = []
        self._computing = asyncio.Lock()

    @classmethod
    def load(cls, folder: Path) -> "TorchPolicy":
        """The policy of a Hugging Face folder."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(model, AutoTokenizer.from_pretrained(folder))

    def frozen_copy(self) -> "TorchPolicy":
        """The policy as it is, which stays so: the reference of a training run."""
        return TorchPolicy(copy.deepcopy(self.model).requires_grad_(False), self.tokenizer)

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw completions; see `Engine.generate`."""
        return [
            Completion(
                text=sample.text,
                finish_reason="stop" if sample.finished else "length",
                prompt_tokens=len(sample.prompt),
                completion_tokens=len(sample.response),
            )
            for sample in await self.sample(conversation, settings)
        ]

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`."""
        return {"model": str(self.model.name_or_path), "dtype": "float32", "device": "cpu"}

    async def sample(self, conversation: Sequence[Message], settings: GenerationSettings) -> list[Sample]:
        """Draw `settings.n` responses to a conversation, as tokens.

        Sample i of a call depends on the seed and on i alone, but for rounding in batches of other shapes.
        """
        [text] = render_prompts(self.tokenizer, [conversation], template_arguments(settings.chat_template_thinking))
        prompt = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        seed = random.getrandbits(32) if settings.seed is None else settings.seed
        requests = [_Request(prompt, settings, random.Random(f"{seed}/{index}")) for index in range(settings.n)]
        self._waiting += requests
        await asyncio.sleep(0)  # other tasks that are ready add their requests to the batch
        async with self._computing:
            if not all(request.done for request in requests):
                batch, self._waiting = self._waiting, []
                await asyncio.to_thread(self._generate, batch)
        return [self._sample(request) for request in requests]

    def _sample(self, request: _Request) -> Sample:
        text = self.tokenizer.decode(request.response, skip_special_tokens=True)
        finished = bool(request.response) and request.response[-1] == self._end
        return Sample(request.prompt, tuple(request.response), text, finished)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _generate(self, batch: list[_Request]) -> None:
        """Generate for a batch, token by token; prompts are padded on the left, so that all end at the same column."""
        from transformers import DynamicCache

        longest = max(len(request.prompt) for request in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, request in enumerate(batch):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        positions, cache = (mask.cumsum(1) - 1).clamp(min=0), DynamicCache()
        while not all(request.done for request in batch):
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            tokens = _drawn(logits.float(), batch)
            for token, request in zip(tokens.tolist(), batch, strict=True):
                if not request.done:
                    request.response.append(token)
                    request.done = token == self._end or len(request.response) == request.settings.max_tokens
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones(len(batch), 1, dtype=torch.long)], 1)

    def log_probs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[torch.Tensor]:
        """Log-probabilities of the responses' tokens under the policy, with gradients; one tensor for each sample.

        Args:
            samples: They are computed together.
            temperature: The one that they were drawn at.
        """
        rows = [torch.tensor(sample.prompt + sample.response) for sample in samples]
        # Padding comes last, where causal attention keeps it from every token.
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits.float() / temperature
        every = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        firsts = [len(sample.prompt) - 1 for sample in samples]
        return [every[row, first : first + len(samples[row].response)] for row, first in enumerate(firsts)]


def _drawn(logits: torch.Tensor, batch: Sequence[_Request]) -> torch.Tensor:
    """A token for each request (requests), by its temperature and nucleus, from its own random numbers."""
    settings = [request.settings for request in batch]
    greedy = torch.tensor([item.temperature == 0 for item in settings])
    temperatures = torch.tensor([item.temperature or 1.0 for item in settings])
    probabilities, tokens = torch.softmax(logits / temperatures[:, None], -1).sort(descending=True)
    # The nucleus has every token that those before it do not fill; a greedy one has the first token alone.
    before = probabilities.cumsum(-1) - probabilities
    within = before < torch.tensor([item.top_p for item in settings])[:, None]
    within[greedy, 1:] = False
    cumulative = torch.where(within, probabilities, 0.0).cumsum(-1)
    drawn = torch.tensor([request.random.random() for request in batch]) * cumulative[:, -1]
    index = torch.searchsorted(cumulative, drawn[:, None], right=True)
    return tokens.gather(-1, index.minimum(within.sum(-1, keepdim=True) - 1))[:, 0]
