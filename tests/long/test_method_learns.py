"""method.py trains: the reward of a small pocket model rises, and does not where the advantages are shuffled.

`pytest tests/long`: minutes on two cores, and no part of scripts/test.sh. With these sizes the rise was within noise
(0.9 standard errors with seed 0), because the model solves almost nothing: larger ones have yet to be found.
"""

import asyncio
import random
import statistics

import pytest

pytest.importorskip("torch", reason="torch is not installed (scripts/setup.sh --profile none)")

from cobalt import method
from cobalt.datasets.pocket.dataset import draw_records
from cobalt.datasets.pocket.training import Recipe, train_seed_model
from cobalt.engine import GenerationSettings
from cobalt.engine.torch_policy import TorchPolicy
from cobalt.judge import LocalJudge, RememberingJudge
from cobalt.problem import Problem

RECIPE = Recipe(hidden=128, layers=2, heads=4, key_value_heads=2, feed_forward=128, demonstrations=1_000)
PROBLEMS = 16
SIZES = method.Settings(
    collecting=GenerationSettings(n=2, max_tokens=120),
    programs=2,
    training=GenerationSettings(n=8, max_tokens=120, temperature=1.0, top_p=1.0),
    steps=15,
    contexts=8,
    mini_batch=64,
    learning_rate=1e-3,
    kl=0.02,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seed_model")
    train_seed_model(folder, 0, RECIPE)
    return folder


async def trained(model, own, weigh):
    """The mean reward of each step."""
    problems = [Problem.parse(record) for record in draw_records("train", PROBLEMS, 0, 0.0)]
    policy = TorchPolicy.load(model)
    async with LocalJudge() as local:
        judge = RememberingJudge(local)
        groups = await asyncio.gather(*(method.collect(problem, policy, judge, own) for problem in problems))
        pool = [part for group in groups for part in method.contexts_of(group)]
        return await method.train(pool, policy, judge, own, weigh)


def rise(rewards):
    """How much the last third of the steps lies above the first, in standard errors of the difference."""
    third = len(rewards) // 3
    first, last = rewards[:third], rewards[-third:]
    error = ((statistics.variance(first) + statistics.variance(last)) / third) ** 0.5
    return (statistics.mean(last) - statistics.mean(first)) / error


@pytest.mark.sandbox
@pytest.mark.timeout(1800)
@pytest.mark.xfail(reason="the sizes are too small: see the head of this file")
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
