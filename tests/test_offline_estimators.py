"""Offline RL: advantages against references, the loss's gradient against hand-written ones and finite differences."""

import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.reward.offline import OfflineSettings, exponential, group_normalised, leave_one_out, offline_advantages
from cobalt.stage.errors import UserError

rewards = st.lists(st.sampled_from([1.0, -0.3, -0.6, -1.0]), min_size=2, max_size=8).filter(lambda r: len(set(r)) > 1)


@given(rewards)
def test_leave_one_out_compares_each_reward_with_the_mean_of_the_others(values):
    exact = [Fraction(value) for value in values]
    expected = [r - (sum(exact) - r) / (len(exact) - 1) for r in exact]
    assert leave_one_out(np.array(values)) == pytest.approx([float(a) for a in expected], abs=1e-12)


@given(rewards)
def test_group_normalised_divides_by_the_sample_deviation(values):
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    expected = [(value - mean) / (deviation + 1e-6) for value in values]
    assert group_normalised(np.array(values)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(rewards, st.floats(0.1, 3))
def test_exponential_weighs_every_response_and_keeps_the_order(values, beta):
    found = exponential(np.array(values), beta)
    assert (found > 0).all()
    assert np.log(found) / beta == pytest.approx(group_normalised(np.array(values)), abs=1e-9)


def test_supervised_training_takes_the_accepted_responses_alike():
    found = offline_advantages(OfflineSettings("sft"), np.array([1.0, -1.0, 1.2]), np.array([True, False, True]))
    assert found.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"estimator": "ppo"}, "estimator"),
        ({"beta": 0}, "beta"),
        ({"beta": True}, "beta"),
        ({"clip": 1.0}, "clip"),
        ({"clip": "a"}, "clip"),
        ({"kl": -0.1}, "kl"),
        ({"kl": math.nan}, "kl"),
        ({"estimator": "sft", "clip": 0.2}, "clip"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, name):
    with pytest.raises(UserError, match=f"offline.{name}"):
        OfflineSettings(**settings)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="veRL is not installed (scripts/setup.sh --profile none)")


def jagged(rows):
    import torch

    return torch.nested.as_nested_tensor([torch.as_tensor(row).double() for row in rows], layout=torch.jagged)


def loss_of(settings, log_probs, advantages, mask, start=None):
    """The loss of a batch of one micro-batch on one rank; `log_probs` and `start` are its flat values."""
    import torch

    from cobalt_verl.losses.offline import offline_loss

    offsets = torch.tensor([0, *itertools.accumulate(map(len, mask))])
    flat = [None if one is None else torch.nested.nested_tensor_from_jagged(one, offsets) for one in (log_probs, start)]
    data = {"advantages": jagged(advantages), "loss_mask": jagged(mask), "start_log_probs": flat[1], "dp_size": 1}
    return offline_loss(settings, {"log_probs": flat[0]}, data | {"batch_num_tokens": sum(map(sum, mask))})[0]


def test_the_gradient_of_the_policy_gradient_is_the_written_one_on_a_model_of_two_tokens(torch):
    # pi(1) = sigmoid(z). d log pi(1) / dz = 1 - p, d log pi(0) / dz = -p. Two responses: (1, 1) with A = 0.5 and (0)
    # with A = -2; each has a prompt's token before it, which does not count. The mean runs over three tokens.
    z = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    one, zero = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    other = torch.tensor(-7.0, dtype=torch.float64)
    values = torch.stack([other, one, one, other, zero])
    loss_of(OfflineSettings("rloo"), values, [[9, 0.5, 0.5], [9, -2.0]], [[0, 1, 1], [0, 1]]).backward()
    p = 1 / (1 + math.exp(-0.3))
    assert z.grad.item() == pytest.approx(-(0.5 * (1 - p) + 0.5 * (1 - p) - 2.0 * -p) / 3, abs=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        OfflineSettings("grpo"),
        OfflineSettings("grpo", kl=0.3),
        OfflineSettings("grpo", clip=0.2),
        OfflineSettings("grpo", clip=0.2, kl=0.3),
        OfflineSettings("sft", kl=0.3),
    ],
)
def test_the_gradient_agrees_with_finite_differences(torch, settings):
    generator = torch.Generator().manual_seed(0)
    weights, start = (torch.randn(6, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    tokens = torch.tensor([0, 3, 1, 4, 2, 2])[:, None]

    def chosen(logits):
        return torch.log_softmax(logits, -1).gather(-1, tokens)[:, 0]

    def loss(logits):
        advantages, mask = [[0, 1.5, 1.5, 1.5], [0, -0.7]], [[0, 1, 1, 1], [0, 1]]
        return loss_of(settings, chosen(logits), advantages, mask, chosen(start))

    assert torch.autograd.gradcheck(loss, (weights.requires_grad_(),))


def test_the_ratio_stops_the_gradient_of_tokens_that_moved_far_enough(torch):
    from cobalt_verl.losses.offline import token_losses

    start = torch.zeros(4, dtype=torch.float64)
    log_probs = torch.tensor([0.5, -0.5, 0.5, -0.5], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    token_losses(OfflineSettings("grpo", clip=0.2), log_probs, advantages, start).sum().backward()
    assert (log_probs.grad == 0).tolist() == [True, False, False, True]


def test_an_infinite_value_at_a_prompts_token_does_not_reach_the_loss(torch):
    log_probs = torch.tensor([-math.inf, -1.0], dtype=torch.float64)
    assert loss_of(OfflineSettings("rloo"), log_probs, [[1, 2.0]], [[0, 1]]).item() == 2.0
