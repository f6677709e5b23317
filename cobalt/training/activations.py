"""Memory that a micro-batch takes besides weights: the model's own code runs on the meta device, and storages are counted.

Tensors on the meta device have shapes and no data, so a model of any size and a batch of any length run in seconds on a
CPU. Real kernels for attention and log-probs do not run there. Functions stand in for them that keep what the kernels
keep for the backward pass. What FSDP2 gathers is not part of it (`cobalt.training.fits`).
"""

import functools
import weakref
from dataclasses import dataclass
from typing import Any, Literal

from cobalt.training.states import BYTES, meta_policy

Attention = Literal["flash", "mask"]
"""flash: a kernel that keeps no scores and needs no mask. mask: PyTorch's kernel for a mask of all tokens by all."""

_CHUNK = 1024
"""Tokens whose log-probs are computed in 32 bits at a time (cobalt_verl.packed_sdpa)."""

_NAME = "cobalt_measured"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one pass of a model computes.

    Attributes:
        rows: Sequences.
        length: Tokens of each.
        packed: Whether the sequences are one row, and not a row each with padding.
        attention: The kernel.
        checkpointing: Whether layers are computed again in the backward pass.
        entropy: Whether the entropy is computed too; "whole": in one piece by single operations.
        backward: Whether there is a backward pass.
    """

    rows: int
    length: int
    packed: bool = True
    attention: Attention = "flash"
    checkpointing: bool = True
    entropy: Literal["no", "compiled", "whole"] = "no"
    backward: bool = True


def measure(model: Any, batch: MicroBatch, computed: str) -> int:
    """Most bytes that are live at the same time, without the weights; gradients of weights are dropped when complete.

    Args:
        model: veRL's section `model` of a composed configuration.
        batch: What is computed.
        computed: Precision of the computation, such as "bf16".

    Raises:
        UserError: the model has no configuration on this machine.
        RuntimeError: the model's code cannot run without data.
    """
    lora = (int(model.lora_rank), int(model.lora_alpha), str(model.target_modules))
    return _measured(_Model(str(model.path), *lora), batch, BYTES[computed])


@dataclass(frozen=True, slots=True)
class _Model:
    """The settings of a model that decide its activations, by veRL's names."""

    path: str
    lora_rank: int
    lora_alpha: int
    target_modules: str


@functools.cache
def _measured(model: _Model, batch: MicroBatch, width: int) -> int:
    import torch
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    policy = meta_policy(model).to(torch.bfloat16 if width == 2 else torch.float32)
    policy.config._attn_implementation = _NAME
    if batch.checkpointing:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if model.lora_rank:
        policy.enable_input_require_grads()
    for weight in policy.parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(_drop_gradient)
    policy.train()
    shape = (1, batch.rows * batch.length) if batch.packed else (batch.rows, batch.length)
    tokens = torch.zeros(shape, dtype=torch.long, device="meta")
    masked = batch.attention == "mask"
    with _live_storages([*policy.parameters(), *policy.buffers()]) as live, torch.set_grad_enabled(batch.backward):
        # A mask of four dimensions is what models take as it is, without looking at data.
        mask = torch.zeros((shape[0], 1, *([shape[1]] * 2 if masked else [1, 1])), dtype=torch.bool, device="meta")
        logits = policy(input_ids=tokens, position_ids=tokens, attention_mask=mask, use_cache=False).logits
        if not batch.packed:
            logits = torch.cat(list(logits.unbind()))  # veRL takes the padding out
        entropy = _entropy(logits, batch)
        loss = (_chunked if not masked else _by_rows)(logits, batch.entropy == "no") + entropy
        del logits, entropy
        if batch.backward:
            loss.mean().backward()
    return live.most


def _drop_gradient(weight: Any) -> None:
    weight.grad = None


def _attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **_: Any) -> tuple[Any, None]:
    """What transformers calls for attention; with a mask of all tokens, keys and values are repeated for all heads."""
    if mask is not None and mask.shape[-1] > 1:
        times = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(times, dim=1) for part in (key, value))
        mask = mask.to(query.dtype)
    return _kept(query, key, value, mask).transpose(1, 2).contiguous(), None


def _kept(query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Attention's output; inputs, output and one sum for each token and head are kept for the backward pass."""
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
            output = torch.empty_like(query)
            sums = torch.empty(query.shape[:-1], dtype=torch.float32, device="meta")
            ctx.save_for_backward(query, key, value, mask, output, sums)
            return output

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
            return (*(torch.empty_like(part) for part in ctx.saved_tensors[:3]), None)

    return Attention.apply(query, key, value, mask)


def _chunked(logits: Any, in_place: bool) -> Any:
    """Log-probs in chunks, or by flash-attn's kernel; the gradient may take the place of the logits."""
    import torch

    class LogProbs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any) -> Any:
            ctx.save_for_backward(logits)
            logits.reshape(-1, logits.shape[-1])[:_CHUNK].float()
            return torch.empty(logits.shape[:-1], dtype=torch.float32, device="meta")

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (logits,) = ctx.saved_tensors
            logits.reshape(-1, logits.shape[-1])[:_CHUNK].float().softmax(-1)
            return logits if in_place else torch.empty_like(logits)

    return LogProbs.apply(logits)


def _by_rows(logits: Any, in_place: bool) -> Any:
    """veRL's log-probs without flash-attn: each token's are kept in 32 bits, and gradients are put together at the end."""
    import torch

    class LogProbs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any) -> Any:
            ctx.save_for_backward(torch.empty(logits.shape, dtype=torch.float32, device="meta"))
            return torch.empty(logits.shape[:-1], dtype=torch.float32, device="meta")

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (kept,) = ctx.saved_tensors
            parts = torch.empty(kept.shape, dtype=logits_type, device="meta")
            return parts.clone()

    logits_type = logits.dtype
    return LogProbs.apply(logits)


def _entropy(logits: Any, batch: MicroBatch) -> Any:
    import torch

    if batch.entropy == "whole":
        shares = logits.float().softmax(-1)
        return logits.logsumexp(-1) - (shares * logits).sum(-1)
    if batch.entropy == "compiled" and batch.backward:

        class Entropy(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, logits: Any) -> Any:
                ctx.save_for_backward(logits)
                return torch.empty(logits.shape[:-1], dtype=torch.float32, device="meta")

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                return torch.empty_like(ctx.saved_tensors[0])

        return Entropy.apply(logits)
    return 0


def _live_storages(known: list[Any]) -> Any:
    """A context that counts the bytes of all storages that operations make in it; `most` has the highest count."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Live(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.now = self.most = 0
            self._seen = {tensor.untyped_storage()._cdata for tensor in known}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self._count(tensor.untyped_storage())
            return result

        def _count(self, storage: Any) -> None:
            name, size = storage._cdata, storage.nbytes()
            if name in self._seen:
                return
            self._seen.add(name)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, name, size)

        def _forget(self, name: int, size: int) -> None:
            self._seen.discard(name)
            self.now -= size

    return Live()
