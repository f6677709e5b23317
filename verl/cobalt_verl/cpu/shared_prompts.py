"""VeRL's FSDP engine for a CPU: no padding, and a prompt that several samples share is computed once.

The tokens of a micro-batch are one row: each prompt, followed by all of its responses. A response attends to its prompt
and to itself, and its positions go on from the prompt. The logits are computed for the tokens of responses alone. The
log-probs, and so the gradient, are those of separate padded sequences up to rounding. The model must take its attention
from transformers' interface. veRL imports this module by `actor_rollout_ref.model.external_lib`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl.utils import tensordict_utils
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

ATTENTION = "cobalt_shared_prompts"
"""The name of `attend` among transformers' attention functions."""


@dataclass(frozen=True, slots=True)
class Block:
    """A prompt with its responses, by their numbers of tokens.

    `seen` says which tokens of the prompt and of a response (columns) each token of the longest response sees (rows);
    None if there is one response, which follows as in any sequence.
    """

    prompt: int
    responses: tuple[int, ...]
    seen: torch.Tensor | None

    @property
    def pieces(self) -> tuple[int, ...]:
        """Tokens of the prompt and of each response; one number if there is one response."""
        return (self.prompt + sum(self.responses),) if self.seen is None else (self.prompt, *self.responses)


@dataclass(frozen=True, slots=True)
class Packed:
    """The tokens of several samples in one row.

    Attributes:
        input_ids: Each distinct prompt, followed by its responses (tokens).
        positions: The position of each token in its own sample (tokens).
        blocks: The prompts with their responses, in order.
        predictors: For each token of the responses, by samples, the index of the token before it (response tokens).
        labels: The tokens of the responses, by samples (response tokens).
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    blocks: tuple[Block, ...]
    predictors: torch.Tensor
    labels: torch.Tensor


def pack(prompts: Sequence[torch.Tensor], responses: Sequence[torch.Tensor]) -> Packed:
    """Put samples, each a prompt of at least one token and a response, into one row."""
    samples_of: dict[tuple[int, ...], list[int]] = {}
    for sample, prompt in enumerate(prompts):
        samples_of.setdefault(tuple(prompt.tolist()), []).append(sample)
    pieces: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    blocks: list[Block] = []
    predictors: dict[int, torch.Tensor] = {}
    end = 0
    for tokens, samples in samples_of.items():
        start, length = end, len(tokens)
        pieces.append(prompts[samples[0]])
        positions.append(torch.arange(length))
        end += length
        for sample in samples:
            size = len(responses[sample])
            pieces.append(responses[sample])
            positions.append(torch.arange(length, length + size))
            before = torch.arange(end - 1, end - 1 + size)
            before[:1] = start + length - 1
            predictors[sample] = before
            end += size
        sizes = tuple(len(responses[sample]) for sample in samples)
        seen = torch.ones(max(sizes), length + max(sizes), dtype=torch.bool).tril(length) if len(sizes) > 1 else None
        blocks.append(Block(length, sizes, seen))
    return Packed(
        torch.cat(pieces),
        torch.cat(positions),
        tuple(blocks),
        torch.cat([predictors[sample] for sample in range(len(prompts))]),
        torch.cat(list(responses)),
    )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    blocks: Sequence[Block],
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within the blocks, by transformers' interface.

    Args:
        module: Not used.
        query: (1, heads, tokens, head size).
        key: (1, heads of keys and values, tokens, head size).
        value: As `key`.
        attention_mask: Not used: `blocks` say what is seen.
        blocks: See `Packed`; a keyword of the model's call.
        scaling: Factor of the products; None: 1 / sqrt(head size).

    Returns:
        (1, tokens, heads, head size), and no weights.
    """
    attention = partial(torch.nn.functional.scaled_dot_product_attention, scale=scaling, enable_gqa=True)
    # Tokens first, and one split for all blocks: the gradient of each slice would be a row of zeros as long as all.
    lengths = [length for block in blocks for length in block.pieces]
    rows = [iter(part[0].transpose(0, 1).split(lengths)) for part in (query, key, value)]
    parts: list[torch.Tensor] = []
    for block in blocks:
        first = [_padded([next(row)]) for row in rows]
        parts += _unpadded(attention(*first, is_causal=True), block.pieces[:1])
        if block.seen is None:
            continue
        count = len(block.responses)
        queries, *others = (_padded(list(islice(row, count))) for row in rows)
        pairs = zip(first[1:], others, strict=True)
        keys, values = (torch.cat([before.expand(count, -1, -1, -1), own], dim=2) for before, own in pairs)
        parts += _unpadded(attention(queries, keys, values, attn_mask=block.seen), block.responses)
    return torch.cat(parts)[None], None


def _padded(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Pieces of a row, each (tokens, heads, head size), side by side: (pieces, heads, longest, head size)."""
    longest = max(len(piece) for piece in pieces)
    parts = [part for piece in pieces for part in (piece, piece.new_zeros(longest - len(piece), *piece.shape[1:]))]
    return torch.cat(parts).unflatten(0, (len(pieces), longest)).transpose(1, 2)


def _unpadded(padded: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """The inverse of `_padded`."""
    lengths = [length for size in sizes for length in (size, padded.shape[2] - size)]
    return list(padded.transpose(1, 2).flatten(0, 1).split(lengths)[::2])


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attend)


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")
class SharedPromptEngine(FSDPEngineWithLMHead):  # type: ignore[misc]  # veRL is not typed
    """See the module. `use_remove_padding`, sequence parallelism and fused kernels have no effect."""

    def _build_module(self) -> Any:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        module = super()._build_module()
        module.set_attn_implementation(ATTENTION)
        return module

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keywords of the model's call, and what `prepare_model_outputs` needs besides."""
        samples = micro_batch["input_ids"].unbind()
        lengths = micro_batch["prompts"].offsets().diff().tolist()
        responses = [sample[length:] for sample, length in zip(samples, lengths, strict=True)]
        packed = pack([sample[:length] for sample, length in zip(samples, lengths, strict=True)], responses)
        temperature = torch.as_tensor(micro_batch["temperature"], dtype=torch.float32).expand(len(samples))
        sizes = torch.tensor([len(response) for response in responses])
        inputs = {
            "input_ids": packed.input_ids[None],
            "position_ids": packed.positions[None],
            "attention_mask": None,
            "blocks": packed.blocks,
            "logits_to_keep": packed.predictors,
        }
        return inputs, {"labels": packed.labels, "temperature": torch.repeat_interleave(temperature, sizes)}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """Log-probs, and the entropies if they are asked for: nested (samples, tokens), 0 outside responses.

        As everywhere in veRL, the value at a token is about the token after it.
        """
        logits = output.logits[0] / output_args["temperature"].clamp(min=1e-8)[:, None]
        log_probs = torch.log_softmax(logits, dim=-1)
        chosen = log_probs.gather(-1, output_args["labels"][:, None])[:, 0]
        outputs = {"log_probs": _by_sample(chosen, micro_batch)}
        if tensordict_utils.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
            outputs["entropy"] = _by_sample(-(log_probs.exp() * log_probs).sum(dim=-1), micro_batch)
        return outputs


def _by_sample(values: torch.Tensor, micro_batch: Any) -> torch.Tensor:
    """The values of the response tokens as a nested tensor of the samples' lengths."""
    offsets = micro_batch["input_ids"].offsets()
    starts = offsets[:-1] + micro_batch["prompts"].offsets().diff() - 1
    spans = zip(starts.tolist(), (offsets[1:] - 1).tolist(), strict=True)
    indices = torch.cat([torch.arange(start, end) for start, end in spans])
    whole = values.new_zeros(int(offsets[-1])).index_put((indices,), values)
    return torch.nested.nested_tensor_from_jagged(whole, offsets)
