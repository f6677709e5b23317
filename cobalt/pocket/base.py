"""Base: how the seed model fares in its own world, turn by turn, on a few problems and without any service.

A first look while a world is built: plain torch generates (`TorchPolicy`), a `LocalJudge` runs the programs in
sandboxes. The figures to publish come from the rollout scripts and the evaluation, with vLLM and every problem.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cobalt.engine import Engine, GenerationSettings
from cobalt.episode import load_prompts
from cobalt.judge import Judge, LocalJudge
from cobalt.pocket.dataset import PROMPTS
from cobalt.pocket.training import load_torch
from cobalt.problems.problem import Problem
from cobalt.rollout.evaluate import evaluate
from cobalt.rollout.repair import RepairRules, repair_problem

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


def measure_base(model: Path, problems: Sequence[Problem], turns: int, seed: int) -> Base:
    """Have the seed model in the folder `model` write one trajectory of `turns` turns for each of `problems`.

    Args:
        model: A Hugging Face folder.
        problems: At least one.
        turns: Programs of each trajectory, at least one.
        seed: Of the samples.

    Raises:
        UserError: programs cannot be isolated on this machine.
        InfrastructureError: the judge failed.
    """
    load_torch()
    from cobalt.engine.torch_policy import TorchPolicy

    generation = GenerationSettings(n=1, max_tokens=MAX_TOKENS, seed=seed)  # as the seed model's own: 0.6, top-p 0.95
    rules = RepairRules(load_prompts(PROMPTS), generation, turns, enable_thinking=True, truncated_thinking="drop")
    return asyncio.run(_measure(TorchPolicy.load(model), problems, rules))


async def _measure(policy: Engine, problems: Sequence[Problem], rules: RepairRules) -> Base:
    async with LocalJudge() as judge:
        solved = await asyncio.gather(*(_solved(problem, policy, judge, rules) for problem in problems))
    return Base(tuple(solved))


async def _solved(problem: Problem, policy: Engine, judge: Judge, rules: RepairRules) -> tuple[bool, ...]:
    """Whether each program of the problem's one trajectory passes all tests."""
    [trajectory] = await evaluate(await repair_problem(problem, policy, judge, rules), judge)
    return tuple(turn.public_pass_rate == turn.hidden_pass_rate == 1 for turn in trajectory.turns)
