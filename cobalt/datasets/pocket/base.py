"""Base: how the seed model fares in its own world, turn by turn, on a few problems and without any service.

A first look while a world is built: transformers generates, a `LocalJudge` runs the programs in sandboxes. The figures
to publish come from the rollout scripts and the evaluation (`cobalt.rollout`), with vLLM and every problem.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cobalt.conversation import Message, first_messages, load_prompts
from cobalt.datasets.pocket.dataset import PROMPTS
from cobalt.datasets.pocket.training import load_torch
from cobalt.episode import Episode, judge_response
from cobalt.judge import Judge, LocalJudge, RememberingJudge
from cobalt.problem import Problem

MAX_TOKENS = 512
"""The longest response, as in the studies of the pocket world."""


@dataclass(frozen=True, slots=True)
class Base:
    """How a model fared.

    Attributes:
        solved: For each problem, whether its program of turn 0, 1, ... passes all tests, public and hidden.
    """

    solved: tuple[tuple[bool, ...], ...]

    @property
    def pass_at_1(self) -> list[float]:
        """Share of the problems solved by the program of turn 0, 1, ..."""
        return [sum(column) / len(self.solved) for column in zip(*self.solved, strict=True)]

    @property
    def repair_rates(self) -> list[float | None]:
        """Share of the problems unsolved at turn 0, 1, ... that are solved at the next; None where all were solved."""
        rates: list[float | None] = []
        for before, after in pairwise(zip(*self.solved, strict=True)):
            repaired = [right for wrong, right in zip(before, after, strict=True) if not wrong]
            rates.append(sum(repaired) / len(repaired) if repaired else None)
        return rates

    def to_json(self) -> dict[str, Any]:
        """The shares, rounded to six digits."""
        return {
            "problems": len(self.solved),
            "pass_at_1": [round(share, 6) for share in self.pass_at_1],
            "repair_rates": [None if rate is None else round(rate, 6) for rate in self.repair_rates],
        }


def measure_base(model: Path, problems: Sequence[Problem], turns: int, seed: int) -> Base:
    """Have the seed model in the folder `model` write one trajectory of `turns` turns for each of `problems`.

    Args:
        model: A Hugging Face folder; its generation settings (temperature 0.6, top-p 0.95) are used.
        problems: At least one.
        turns: Programs of each trajectory, at least one.
        seed: Of the samples.

    Raises:
        UserError: programs cannot be isolated on this machine.
        InfrastructureError: the judge failed.
    """
    return asyncio.run(_measure(_Writer(model, seed), problems, turns))


async def _measure(writer: "_Writer", problems: Sequence[Problem], turns: int) -> Base:
    prompts = load_prompts(PROMPTS)
    episodes = [
        Episode(
            first_messages(problem, prompts),
            problem.public_tests,
            prompts,
            turns=turns,
            enable_thinking=True,
            truncated_thinking="drop",
        )
        for problem in problems
    ]
    solved: list[list[bool]] = [[] for _ in problems]
    async with LocalJudge() as local:
        judge = RememberingJudge(local)
        for _ in range(turns):
            responses = writer.write([episode.messages for episode in episodes])
            turn = zip(episodes, problems, responses, strict=True)
            outcomes = await asyncio.gather(*(_step(judge, *item) for item in turn))
            for row, outcome in zip(solved, outcomes, strict=True):
                row.append(outcome)
    return Base(tuple(map(tuple, solved)))


async def _step(judge: Judge, episode: Episode, problem: Problem, response: str) -> bool:
    """Take a turn; whether its program passes all tests."""
    step = await episode.step(response, judge)
    return step.result.all_passed and (await judge_response(judge, response, problem.hidden_tests)).all_passed


class _Writer:
    """The model: it answers a batch of conversations."""

    def __init__(self, folder: Path, seed: int) -> None:
        load_torch()
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        torch.manual_seed(seed)

    def write(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
        """A response to each conversation, all of them in one batch."""
        import torch

        texts = [
            self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            for messages in conversations
        ]
        batch = self._tokenizer(texts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = self._model.generate(**batch, max_new_tokens=MAX_TOKENS)
        new = ids[:, batch["input_ids"].shape[1] :]
        responses: list[str] = self._tokenizer.batch_decode(new, skip_special_tokens=True)
        return responses
