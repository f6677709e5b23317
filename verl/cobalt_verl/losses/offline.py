"""The loss of offline training: a policy gradient on responses that somebody else wrote (arXiv 2605.28409).

With the advantage A of a token's response, its log-prob l and its log-prob l0 under the starting policy, a token adds

    -A l                                             without an importance ratio, as in the paper
    -min(r A, clip(r, 1 - c, 1 + c) A), r = exp(l - l0)     with one
    + kl (exp(l - l0) - (l - l0) - 1)                a penalty for leaving the starting policy

The mean of the penalty over the starting policy's own samples is the KL divergence KL(start || policy); over samples of
others, which are trained on here, it is not. The loss is the mean over the response tokens of the whole batch, on all
ranks. Without a ratio and a penalty nothing bounds it from below: log-probs of responses with a negative advantage may
fall for ever.
"""

from typing import Any

import torch

from cobalt.reward.offline import OfflineSettings


def token_losses(
    settings: OfflineSettings, log_probs: torch.Tensor, advantages: torch.Tensor, start: torch.Tensor | None
) -> torch.Tensor:
    """The loss of each token by l, A and l0 of shape (tokens), see the module.

    `start`, which is l0, may be None if `settings` needs none.
    """
    if not settings.needs_start:
        return -advantages * log_probs
    assert start is not None
    change = log_probs - start
    if settings.clip is None:
        losses = -advantages * log_probs
    else:
        ratio = change.exp()
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        losses = -torch.minimum(ratio * advantages, clipped * advantages)
    if settings.kl:
        losses = losses + settings.kl * (change.exp() - change - 1)
    return losses


def offline_loss(
    settings: OfflineSettings, model_output: Any, data: Any, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss of a micro-batch (scalar) and no metrics, as veRL's training worker calls it.

    Args:
        settings: Settings that say which terms there are.
        model_output: `log_probs`, nested (samples, tokens); the value at a token is about the token after it.
        data: The micro-batch: `loss_mask`, `advantages` and, where they are needed, `start_log_probs`, placed like the
            log-probs; `batch_num_tokens`, the response tokens of the batch on all ranks, and `dp_size`.
        dp_group: Not used.
    """
    start = data["start_log_probs"].values() if settings.needs_start else None
    losses = token_losses(settings, model_output["log_probs"].values(), data["advantages"].values(), start)
    mask = data["loss_mask"].values()
    # Not a product with the mask, because an infinite value at a prompt's token would become NaN.
    total = torch.where(mask.bool(), losses, 0.0).sum()
    return total / data["batch_num_tokens"] * data["dp_size"], {}
