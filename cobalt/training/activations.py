"""Memory that a micro-batch takes besides weights, counted while the model's own code runs on the meta device.

Tensors on the meta device have shapes and no data, so a model of any size and a batch of any length run in seconds on a
CPU. Kernels for attention and log-probs do not run there; `cobalt.training.stand_ins` has functions in their place.
What FSDP2 gathers is not part of it (`cobalt.training.fits`).
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

from cobalt.stage.errors import CobaltError
from cobalt.training.states import BYTES, PolicyChoice, meta_policy

Attention = Literal["flash", "mask"]
"""flash: a kernel that keeps no scores and needs no mask. mask: PyTorch's kernel for a mask of all tokens by all."""

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


class NeedsData(CobaltError):
    """A model's own code does not run on tensors without data; the text is the kind of its error."""


def measure(model: Any, batch: MicroBatch, computed: str) -> int:
    """Most bytes that are live at the same time, without the weights; gradients of weights are dropped when complete.

    Args:
        model: veRL's section `model` of a composed configuration.
        batch: What is computed.
        computed: Precision of the computation, such as "bf16".

    Raises:
        UserError: the model has no configuration on this machine.
        NeedsData: the model's code cannot run without data.
    """
    return _measured(PolicyChoice.of(model), batch, BYTES[computed])


@functools.cache
def _measured(choice: PolicyChoice, batch: MicroBatch, width: int) -> int:
    import torch
    from transformers import AttentionInterface

    from cobalt.training import stand_ins

    AttentionInterface.register(_NAME, stand_ins.attend)
    policy = meta_policy(choice).to(torch.bfloat16 if width == 2 else torch.float32)
    policy.config._attn_implementation = _NAME
    if batch.checkpointing:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if choice.lora_rank:
        policy.enable_input_require_grads()
    for weight in policy.parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(_drop_gradient)
    policy.train()
    rows, length = (1, batch.rows * batch.length) if batch.packed else (batch.rows, batch.length)
    seen = length if batch.attention == "mask" else 1
    known = [*policy.parameters(), *policy.buffers()]
    with stand_ins.LiveStorages(known) as live, torch.set_grad_enabled(batch.backward):
        tokens = torch.zeros((rows, length), dtype=torch.long, device="meta")
        # A mask of four dimensions is what models take as it is, without looking at data.
        mask = torch.zeros((rows, 1, seen, seen), dtype=torch.bool, device="meta")
        try:
            logits = policy(input_ids=tokens, position_ids=tokens, attention_mask=mask, use_cache=False).logits
        except (RuntimeError, TypeError) as error:  # what PyTorch and Python make of code that reads values
            raise NeedsData(type(error).__name__) from error
        if not batch.packed:
            logits = torch.cat(list(logits.unbind()))  # veRL takes the padding out
        values = _values(logits, batch)
        del logits
        if batch.backward:
            values.mean().backward()
    return int(live.most)


def _drop_gradient(weight: Any) -> None:
    weight.grad = None


def _values(logits: Any, batch: MicroBatch) -> Any:
    """Log-probs, and the entropy added to them."""
    from cobalt.training import stand_ins

    if batch.attention == "mask":
        found = stand_ins.LogProbsByRow.apply(logits)
    else:
        found = stand_ins.KernelLogProbs.apply(logits, batch.entropy == "no")
    if batch.entropy == "no":
        return found
    return found + (
        stand_ins.whole_entropy(logits) if batch.entropy == "whole" else stand_ins.CompiledEntropy.apply(logits)
    )
