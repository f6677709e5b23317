"""VeRL's FSDP engine without the package flash-attn: PyTorch's own attention, and log-probs in chunks.

veRL packs the sequences of a micro-batch into one row. Transformers' attention `sdpa` then takes a mask of all tokens
by all tokens, which at 262,144 tokens has 64 GiB. Here each sequence of the row is a call of its own with a causal
mask, which needs no memory and lets PyTorch choose its flash kernel. Without flash-attn veRL also computes log-probs
one token at a time, and rounds them to the precision of the logits; here many are computed at once in 32 bits, and
their gradients take the place of the logits.

The launcher names this module in `actor_rollout_ref.model.external_lib` where it chooses `sdpa`
(`cobalt.training.installed`). Not for sequence parallelism, which veRL puts into the calls of flash-attn.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl.utils import tensordict_utils
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

ATTENTION = "cobalt_packed_sdpa"
"""The name of `attend` among transformers' attention functions."""

_CHUNK = 1024
"""Tokens whose logits are held in 32 bits at the same time: 0.6 GiB at a vocabulary of 152,000."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    sequences: Sequence[tuple[int, int]],
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each sequence of a row, by transformers' interface.

    Args:
        module: Not used.
        query: (1, heads, tokens, head size).
        key: (1, heads of keys and values, tokens, head size).
        value: As `key`.
        attention_mask: Not used: `sequences` say what is seen.
        sequences: First token of each sequence and the token after its last one, which begins the next; a keyword of
            the model's call.
        dropout: Share of the weights that is set to zero.
        scaling: Factor of the products; None: 1 / sqrt(head size).
        sliding_window: Number of tokens that one sees, itself included; None: all before it.

    Returns:
        (1, tokens, heads, head size), and no weights.
    """
    attention = partial(
        torch.nn.functional.scaled_dot_product_attention, dropout_p=dropout, scale=scaling, enable_gqa=True
    )
    lengths = [end - start for start, end in sequences]
    parts = []
    # Split once: the gradient of each slice would be a row of zeros as long as the whole row.
    for length, *row in zip(lengths, *(tensor.split(lengths, dim=2) for tensor in (query, key, value)), strict=True):
        mask = None
        if sliding_window is not None and length > sliding_window:
            seen = torch.ones(length, length, dtype=torch.bool, device=query.device)
            mask = seen.tril().triu(1 - sliding_window)
        parts.append(attention(*row, attn_mask=mask, is_causal=mask is None))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)


class _LogProbs(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed
    """Log-probs of labels, computed in chunks in 32 bits; nothing of the size of the logits is kept beside them."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, in_place: bool) -> torch.Tensor:
        """See `log_probs`, with logits of two dimensions."""
        chosen = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
        for scores, names, values in zip(logits.split(_CHUNK), labels.split(_CHUNK), chosen.split(_CHUNK), strict=True):
            wide = scores.float()
            values.copy_(wide.gather(-1, names[:, None])[:, 0] - wide.logsumexp(-1))
        ctx.save_for_backward(logits, labels)
        ctx.in_place = in_place
        return chosen

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The gradient of a log-prob is 1 at its label, minus the probabilities."""
        logits, labels = ctx.saved_tensors
        result = logits if ctx.in_place else torch.empty_like(logits)
        parts = (part.split(_CHUNK) for part in (logits, labels, gradient, result))
        for scores, names, weights, chunk in zip(*parts, strict=True):
            wide = scores.float().softmax(-1).neg_()
            wide.scatter_add_(-1, names[:, None], torch.ones_like(wide[:, :1]))
            chunk.copy_(wide.mul_(weights[:, None]))
        return result, None, None


def log_probs(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """Log-probs (in 32 bits) of labels (...) by logits (..., vocabulary), in place of veRL's `logprobs_from_logits`.

    With `inplace_backward` the gradient is written over the logits, which nothing may read after that.
    """
    flat: torch.Tensor = _LogProbs.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), inplace_backward)
    return flat.view(labels.shape)


# veRL's engine has no setting for this function, which it would take from flash-attn.
transformer_impl.logprobs_from_logits = log_probs


@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "cpu"], vendor=["nvidia", "cpu"]
)
class PackedSdpaEngine(transformer_impl.FSDPEngineWithLMHead):  # type: ignore[misc]  # veRL is not typed
    """See the module. Without `use_remove_padding` the attention is transformers' own `sdpa`, with a mask."""

    def _build_module(self) -> Any:
        if self.use_ulysses_sp:
            raise ValueError("sequence parallelism needs flash-attn: leave ulysses_sequence_parallel_size at 1")
        module = super()._build_module()
        if self.use_remove_padding:
            module.set_attn_implementation(ATTENTION)
        return module

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As veRL's; the keywords of the model's call say where the sequences of the row begin and end."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        if tensordict_utils.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True):
            bounds = micro_batch["input_ids"].offsets().tolist()
            length = inputs["input_ids"].shape[-1]
            if length > bounds[-1]:  # tokens that fill the row up are a sequence of their own
                bounds.append(length)
            inputs["sequences"] = tuple(pairwise(bounds))
        return inputs, arguments
