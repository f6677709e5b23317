"""A built world with open sentences as a table: its ceilings and, where that is asked for, how its seed model fares.

The seed model (base) is a first look, without any service: plain torch generates, a `LocalJudge` runs the programs. The
figures to publish come from the rollout scripts and the evaluation, with vLLM and every problem.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from rich.table import Table

from cobalt.engine import Engine, GenerationSettings
from cobalt.episode import load_prompts
from cobalt.judge import LocalJudge
from cobalt.pocket.ceilings import TURNS
from cobalt.pocket.dataset import PROMPTS
from cobalt.pocket.training import load_torch
from cobalt.pocket.world import PocketWorld
from cobalt.problems.problem import Problem, load_problems
from cobalt.rollout.evaluate import evaluate
from cobalt.rollout.repair import RepairRules, repair_problem

MAX_TOKENS = 512
"""The longest response, as in the studies of the pocket world."""


def overview(world: PocketWorld, seed: int, base_problems: int = 0) -> Table:
    """Shares in per cent, a column for each turn, of a built world with open sentences.

    The seed model (base) is measured on the first `base_problems` development problems, its samples drawn by `seed`.

    Raises:
        UserError: with `base_problems`, programs cannot be isolated on this machine.
        InfrastructureError: with `base_problems`, the judge failed.
    """
    table = Table(title="Open sentences: % of the problems, by turn", title_justify="left", caption_justify="left")
    for column in ("split", "what"):
        table.add_column(column)
    for turn in range(TURNS):
        table.add_column(str(turn), justify="right")
    counts = []
    for split, figures in json.loads(world.ceilings.read_text(encoding="utf-8")).items():
        by_slots = ", ".join(f"{number} with {count}" for count, number in figures["open_slots"].items())
        counts.append(f"{split}: {figures['problems']} problems by their open sentences: {by_slots}")
        table.add_row(split, "single-turn ceiling", _per_cent(figures["single_turn"]))
        _add_player(table, "blind repairer", figures["blind"], figures["blind_repair_rates"])
        _add_player(table, "repair ceiling", figures["repair"], figures["repair_rates"])
        table.add_section()
    if base_problems:
        problems = list(islice(load_problems(world.dev), base_problems))
        base = measure_base(world.model, problems, TURNS, seed)
        table.add_row("dev", f"base, first {len(problems)} problems")
        _add_player(table, "base", base.pass_at_1, base.repair_rates)
    table.caption = "\n".join(counts)
    return table


def _add_player(table: Table, name: str, solved: Sequence[float], repaired: Sequence[float | None]) -> None:
    table.add_row("", f"{name}: solved", *map(_per_cent, solved))
    table.add_row("", f"{name}: repair rate", "", *map(_per_cent, repaired))


def _per_cent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


@dataclass(frozen=True, slots=True)
class Base:
    """For each problem, whether the seed model's program of turn 0, 1, ... passes all tests, public and hidden."""

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
    """Have the seed model in the folder `model` write one trajectory of `turns` turns for each problem (at least one).

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

        async def solved(problem: Problem) -> tuple[bool, ...]:
            [trajectory] = await evaluate(await repair_problem(problem, policy, judge, rules), judge)
            return tuple(turn.public_pass_rate == turn.hidden_pass_rate == 1 for turn in trajectory.turns)

        return Base(tuple(await asyncio.gather(*map(solved, problems))))
