"""`cobalt.loss_agg`: which tokens one mean of the loss runs over.

With s samples in a micro-batch and G in its mini-batch (over all ranks), a token mean of the loss is

    mini_batch    (sum over the mini-batch's tokens) / (their number)                                   veRL 0.9.1
    micro_batch   sum over micro-batches of s / G x (sum over its tokens) / (their number)              veRL 0.5.0

The paper ran veRL 0.5.0. There a token of a short response weighs more than one of a long response, the more so
the smaller the micro-batch. All terms of the loss (policy, entropy, KL) are averaged alike.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

Loss = Callable[..., tuple[Any, dict[str, Any]]]
"""A loss as veRL's training worker calls it: `loss(model_output=, data=, dp_group=)` for each micro-batch."""


def micro_batch_loss(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
    """`ppo_loss` of veRL, its token means over this micro-batch and weighted by the micro-batch's share of the samples.

    veRL divides each sum over tokens by `batch_num_tokens / D`, adds up the micro-batches of a rank, and averages over
    the D ranks. With the T tokens of this micro-batch, `batch_num_tokens = T G / s` therefore leaves s / G x mean.

    Args:
        config: veRL's `ActorConfig`; `loss_agg_mode` must be "token-mean".
        model_output: Output of the model for the micro-batch.
        data: The micro-batch of s samples: `response_mask` (s, response length), nested or padded, and
            `global_batch_size`, the samples of the mini-batch on all ranks.
        dp_group: Of veRL.
    """
    from verl.utils import tensordict_utils
    from verl.workers.utils.losses import ppo_loss

    mask = data["response_mask"]
    tokens = int((mask.values() if mask.is_nested else mask).sum())
    # A micro-batch of padding has no token, and a loss of 0.
    scaled = max(1, tokens) * data["global_batch_size"] / len(data)
    tensordict_utils.assign_non_tensor(data, batch_num_tokens=scaled)
    result: tuple[Any, dict[str, Any]] = ppo_loss(config, model_output, data, dp_group)
    return result


def worker_loss(config: Any) -> Loss | None:
    """The loss for veRL's training workers by the whole configuration; None: they keep veRL's own."""
    if config.cobalt.loss_agg == "mini_batch":
        return None
    from verl.utils.config import omega_conf_to_dataclass

    return partial(micro_batch_loss, config=omega_conf_to_dataclass(config.actor_rollout_ref.actor))
