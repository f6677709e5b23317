"""Cobalt on one screen (arXiv 2602.03806): from problems to a better policy, in one process, with plain torch.

    python -m cobalt.method pocket/seed0/model pocket/seed0/data/train.jsonl

A reference model writes trajectories once (`collect`), which are selected and cut into contexts (`contexts_of`). A step
is then single-turn GRPO: the policy completes contexts, gets a reward for its programs (`complete`), and learns from
advantages (`grpo`, `loss`, `update`). All imports serve the stages and training on veRL, too.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from cobalt.engine import GenerationSettings
from cobalt.engine.torch_policy import Sample, TorchPolicy
from cobalt.episode import load_prompts
from cobalt.episode.episode import judge_response
from cobalt.episode.trajectory import ProblemTrajectories
from cobalt.judge import ExecResult, Judge, LocalJudge, RememberingJudge
from cobalt.problems.problem import Problem, load_problems
from cobalt.reward import RewardSettings, compute_reward, program_to_judge
from cobalt.rollout.evaluate import evaluate
from cobalt.rollout.repair import RepairRules, repair_problem
from cobalt.selection.scores import ScoredProblem, score_problem
from cobalt.selection.segmentation import Context, context, cut
from cobalt.selection.selection import select, solved_at_first_turn


class Settings(NamedTuple):
    """Sizes for the pocket world. The paper's: 16 samples, 128 contexts, mini-batches of half a step, KL 1e-4."""

    collecting: GenerationSettings = GenerationSettings(n=4, max_tokens=160)  # temperature 0.6, top-p 0.95
    programs: int = 3  # of each trajectory
    training: GenerationSettings = GenerationSettings(n=8, max_tokens=160, temperature=1.0, top_p=1.0)
    steps: int = 16
    contexts: int = 16  # of each step
    mini_batch: int = 128  # samples for one step of the optimiser
    micro_batch: int = 32  # samples computed together
    weight: Callable[[list[int], list[int]], float] = lambda mini, micro: 1 / sum(mini)  # of a token, by tokens of each
    clip: tuple[float, float] = (0.8, 1.4)
    kl: float = 0.1
    learning_rate: float = 4e-4
    seed: int = 0


class Completed(NamedTuple):
    """A sample, its program's result on all tests, and its reward."""

    sample: Sample
    result: ExecResult
    reward: float


class Row(NamedTuple):
    """A sample with its advantage, and log pi_old and log pi_ref of its tokens."""

    sample: Sample
    advantage: float
    old: torch.Tensor
    reference: torch.Tensor


async def collect(problem: Problem, policy: TorchPolicy, judge: Judge, own: Settings) -> ScoredProblem:
    """Trajectories of the reference model: public tests give feedback, then hidden tests measure every program."""
    rules = RepairRules(load_prompts("pocket"), own.collecting, own.programs, True, "drop")
    trajectories = await evaluate(await repair_problem(problem, policy, judge, rules), judge)
    return score_problem(ProblemTrajectories(problem, tuple(trajectories)), own.programs)


def contexts_of(group: ScoredProblem) -> list[Context]:
    """The problem alone, and the partial trajectories of those selected, each ending with feedback (section 3)."""
    if solved_at_first_turn(group):
        return []
    chosen = select(group, most=4).selected
    return [context(group, group.trajectories[0], 0), *(part for item in chosen for part in cut(group, item)[0][1:])]


async def complete(item: Context, policy: TorchPolicy, judge: Judge, own: Settings, seed: int) -> list[Completed]:
    """A group of samples for a context, each with R_correct + R_improve + R_format."""
    samples = await policy.sample(item.messages, own.training.model_copy(update={"seed": seed}))
    results = await asyncio.gather(*(judge_response(judge, sample.text, item.problem.tests) for sample in samples))
    form, group = RewardSettings(lengths=policy.tokenizer.name_or_path), []
    for sample, result in zip(samples, results, strict=True):
        rate = result.pass_rate if program_to_judge(sample.text) is not None else None
        group.append(Completed(sample, result, compute_reward(sample.text, rate, item.best_pass_rate, form).total))
    return group


def grpo(group: Sequence[Completed]) -> list[float]:
    """A_i = (R_i - mean R) / (std R + 1e-6), with n - 1 in the standard deviation."""
    rewards = torch.tensor([completed.reward for completed in group])
    return [float(advantage) for advantage in (rewards - rewards.mean()) / (rewards.std() + 1e-6)]


def loss(policy: TorchPolicy, rows: Sequence[Row], own: Settings) -> torch.Tensor:
    """Sum over tokens of max(-A r, -A clip(r, 0.8, 1.4)) + kl (log pi - log pi_ref)^2 / 2, r = pi / pi_old."""
    now = torch.cat(policy.log_probs([row.sample for row in rows], own.training.temperature))
    old, reference = torch.cat([row.old for row in rows]), torch.cat([row.reference for row in rows])
    advantage = torch.cat([torch.full_like(row.old, row.advantage) for row in rows])
    ratio = (now - old).exp()
    clipped = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(*own.clip))
    clipped = torch.where(advantage < 0, clipped.minimum(-3 * advantage), clipped)  # the bound that veRL adds
    return (clipped + own.kl * (now - reference).square() / 2).sum()


def update(policy: TorchPolicy, optimizer: torch.optim.Optimizer, rows: Sequence[Row], own: Settings) -> None:
    """A step of the optimiser for each mini-batch: on the mean of `loss` over its tokens, computed in micro-batches."""
    for mini in (rows[start : start + own.mini_batch] for start in range(0, len(rows), own.mini_batch)):
        tokens = [len(row.old) for row in mini]
        for micro in (slice(start, start + own.micro_batch) for start in range(0, len(mini), own.micro_batch)):
            (loss(policy, mini[micro], own) * own.weight(tokens, tokens[micro])).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


async def train(
    pool: Sequence[Context], policy: TorchPolicy, judge: Judge, own: Settings, weigh: Callable[..., list[float]] = grpo
) -> list[float]:
    """Train the policy in place, with advantages that `weigh` gives each group; the mean reward of each step."""
    reference, draw, rewards = policy.frozen_copy(), random.Random(own.seed), []
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=own.learning_rate)
    for step in range(own.steps):
        chosen = [(item, draw.getrandbits(31)) for item in draw.choices(pool, k=own.contexts)]
        groups = await asyncio.gather(*(complete(item, policy, judge, own, seed) for item, seed in chosen))
        samples = [completed.sample for group in groups for completed in group]
        with torch.no_grad():
            old, far = (model.log_probs(samples, own.training.temperature) for model in (policy, reference))
        rows = map(Row, samples, (value for group in groups for value in weigh(group)), old, far)
        update(policy, optimizer, list(rows), own)
        rewards.append(sum(completed.reward for group in groups for completed in group) / len(samples))
        sys.stderr.write(f"step {step + 1}: mean reward {rewards[-1]:.3f}\n")
    return rewards


async def cobalt(problems: Sequence[Problem], policy: TorchPolicy, own: Settings) -> list[float]:
    """The whole method; the mean reward of each step."""
    async with LocalJudge() as local:
        judge = RememberingJudge(local)
        groups = await asyncio.gather(*(collect(problem, policy, judge, own) for problem in problems))
        return await train([part for group in groups for part in contexts_of(group)], policy, judge, own)


if __name__ == "__main__":
    model, problems = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
    asyncio.run(cobalt(load_problems(Path(problems))[:100], TorchPolicy.load(Path(model)), Settings()))
