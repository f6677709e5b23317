"""Functions on the meta device in place of kernels, which keep what the kernels keep; and a count of live storages.

The results have shapes and no values. This module imports torch; `cobalt.training.activations` uses it.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CHUNK = 1024
"""Tokens whose log-probs are computed in 32 bits at a time (cobalt_verl.packed_sdpa)."""


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **_: Any
) -> tuple[torch.Tensor, None]:
    """Attention by transformers' interface; for a mask of all tokens, keys and values are repeated for all heads.

    Args:
        module: The layer; not used.
        query: (rows, heads, tokens, head size).
        key: (rows, heads of keys and values, tokens, head size).
        value: As `key`.
        mask: (rows, 1, tokens, tokens); of any other size it is not used.

    Returns:
        (rows, tokens, heads, head size), and no weights.
    """
    if mask is not None and mask.shape[-1] > 1:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
        mask = mask.to(query.dtype)
    return _Attention.apply(query, key, value, mask).transpose(1, 2).contiguous(), None


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed
    """Keeps its inputs, its output, and one number for each token and head."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, mask, output, _one_each(query))
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        return (*(torch.empty_like(part) for part in ctx.saved_tensors[:3]), None)


class KernelLogProbs(torch.autograd.Function):  # type: ignore[misc]
    """Log-probs of (tokens, vocabulary) by flash-attn's kernel or in chunks; the gradient may replace the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Any, in_place: bool) -> Any:
        """One number for each token."""
        ctx.save_for_backward(logits)
        ctx.in_place = in_place
        logits.reshape(-1, logits.shape[-1])[:_CHUNK].float()
        return _one_each(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        """The gradient of the logits."""
        (logits,) = ctx.saved_tensors
        logits.reshape(-1, logits.shape[-1])[:_CHUNK].float().softmax(-1)
        return logits if ctx.in_place else torch.empty_like(logits), None


class LogProbsByRow(torch.autograd.Function):  # type: ignore[misc]
    """veRL's log-probs without flash-attn: each token's are kept in 32 bits, its gradients are put together at the end."""  # noqa: E501

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        """One number for each token."""
        ctx.kind = logits.dtype
        ctx.save_for_backward(torch.empty_like(logits, dtype=torch.float32))
        return _one_each(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradient of the logits."""
        return torch.empty_like(ctx.saved_tensors[0], dtype=ctx.kind).clone()


class CompiledEntropy(torch.autograd.Function):  # type: ignore[misc]
    """The entropy as a compiled function computes it, without anything of the size of the logits until its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        """One number for each token."""
        ctx.save_for_backward(logits)
        return _one_each(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradient of the logits."""
        return torch.empty_like(ctx.saved_tensors[0])


def whole_entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy by single operations, with the probabilities in 32 bits."""
    shares = logits.float().softmax(-1)
    return logits.logsumexp(-1) - (shares * logits).sum(-1)


def _one_each(tensor: Any) -> Any:
    return torch.empty(tensor.shape[:-1], dtype=torch.float32, device=tensor.device)


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """A context that counts the bytes of all storages that operations make in it, for as long as each lives.

    Attributes:
        now: Bytes that live.
        most: The most that lived at the same time.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        """Leave out the storages of the tensors in `known`."""
        super().__init__()
        self.now = self.most = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it makes."""
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
