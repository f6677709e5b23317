"""method.py trains: the mean reward of a small pocket model rises, and does not where the advantages are shuffled.

Not part of scripts/test.sh. The model (360,000 parameters) learns from 800 demonstrations for twelve easy problems,
some of them with mistakes, as those of the seed model have. So after a minute it solves some samples and not others.
"""

import asyncio
import random
import statistics
from unittest import mock

import pytest

pytest.importorskip("torch", reason="torch is not installed (scripts/setup.sh --profile none)")

from cobalt import method
from cobalt.engine import GenerationSettings
from cobalt.engine.torch_policy import TorchPolicy
from cobalt.episode import load_prompts
from cobalt.judge import LocalJudge, RememberingJudge
from cobalt.pocket import training
from cobalt.pocket.dataset import PROMPTS, draw_problems, to_records
from cobalt.pocket.demonstrations import Demonstrator
from cobalt.pocket.training import Recipe, train_seed_model
from cobalt.problems.problem import Problem

RECIPE = Recipe(hidden=128, layers=2, heads=4, key_value_heads=2, feed_forward=128, demonstrations=800)
SIZES = method.Settings(
    collecting=GenerationSettings(n=2, max_tokens=120, seed=0),
    programs=2,
    training=GenerationSettings(n=8, max_tokens=120, temperature=1.0, top_p=1.0),
    steps=15,
    contexts=8,
    mini_batch=64,
    learning_rate=7e-4,
    kl=0.05,
)
DRAWN = [problem for problem in draw_problems("train", 80, 0, 0.0) if problem.task.difficulty == "EASY"][:12]


def demonstrations(count, seed, *_):
    """First programs of the few problems, and repairs after one program, in turn."""
    demonstrator = Demonstrator(random.Random(seed), 0.0, False, load_prompts(PROMPTS))
    for number in range(count):
        problem = DRAWN[number % len(DRAWN)]
        yield demonstrator.demonstrate(problem.task, problem.public, number // len(DRAWN) % 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seed_model")
    with mock.patch.object(training, "draw_demonstrations", demonstrations):
        train_seed_model(folder, 0, RECIPE)
    return folder


async def trained(model, own, weigh):
    """The mean reward of each step."""
    problems = [Problem.parse(record) for record in to_records("train", DRAWN)]
    policy = TorchPolicy.load(model)
    async with LocalJudge() as local:
        judge = RememberingJudge(local)
        groups = await asyncio.gather(*(method.collect(problem, policy, judge, own) for problem in problems))
        pool = [part for group in groups for part in method.contexts_of(group)]
        return await method.train(pool, policy, judge, own, weigh)


def rise(rewards):
    """Rise of the last third of the steps above the first, in standard errors of the difference."""
    third = len(rewards) // 3
    first, last = rewards[:third], rewards[-third:]
    error = ((statistics.variance(first) + statistics.variance(last)) / third) ** 0.5
    return (statistics.mean(last) - statistics.mean(first)) / error


@pytest.mark.sandbox
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_rises(model, seed):
    assert rise(asyncio.run(trained(model, SIZES._replace(seed=seed), method.grpo))) > 2


@pytest.mark.sandbox
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_shuffled_advantages_it_does_not(model, seed):
    draw = random.Random(seed)

    def shuffled(group):
        advantages = method.grpo(group)
        draw.shuffle(advantages)
        return advantages

    assert rise(asyncio.run(trained(model, SIZES._replace(seed=seed), shuffled))) <= 2
