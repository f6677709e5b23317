"""What bounds the update of a training step on a CPU: seconds of its operations, prompts shared or not.

    python benchmarks/update.py --world pocket/seed0

A forward and a backward pass of the seed model over 16 prompts with 8 responses each, as a step of the pocket scale has
them: prompts of training problems, responses of demonstrations. Without sharing, each sample is padded to the longest
of its micro-batch of 16. Neither Ray nor vLLM runs.
"""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.pocket.demonstrations import draw_demonstrations
from cobalt.pocket.training import load_torch
from cobalt.stage.cli import run_script

KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "linear"),
    "attention": ("scaled_dot_product", "flash_attention"),
}
"""Beginnings of the names of torch's operations (after `aten::`); all others are the rest."""

_PROMPTS, _SAMPLES = 16, 8
_SHARED_ROWS, _PADDED_ROWS = 64, 16
_PASSES = 3

Batch = list[tuple[Any, Any]]
"""Prompt and response of each sample, as tensors of tokens."""


@dataclass(frozen=True)
class Arguments:
    """Measure forward and backward pass of an update on a CPU, and what they spend their time on."""

    world: Path
    """Folder of a pocket world, whose seed model is the policy."""
    seed: int = 0
    """Of the world: decides the demonstrations."""


def samples(world: Path, seed: int) -> Batch:
    """The samples of a step."""
    import torch
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(world / "model")
    first_turns = (item for item in draw_demonstrations(4 * _PROMPTS * _SAMPLES, seed) if item.kind == "first")
    drawn = list(itertools.islice(first_turns, _PROMPTS * _SAMPLES))
    rendered = [
        tokenizer.apply_chat_template(list(item.messages), tokenize=True, add_generation_prompt=True, return_dict=False)
        for item in drawn[:_PROMPTS]
    ]
    responses = [tokenizer.encode(item.response, add_special_tokens=False) for item in drawn]
    prompts = [ids for ids in rendered for _ in range(_SAMPLES)]
    return [(torch.tensor(a), torch.tensor(b)) for a, b in zip(prompts, responses, strict=True)]


def shared_pass(model: Any, batch: Batch) -> None:
    """One micro-batch, each prompt once."""
    import torch

    from cobalt_verl.cpu.shared_prompts import pack

    packed = pack([prompt for prompt, _ in batch], [response for _, response in batch])
    logits = model(
        input_ids=packed.input_ids[None],
        position_ids=packed.positions[None],
        blocks=packed.blocks,
        logits_to_keep=packed.predictors,
        use_cache=False,
    ).logits[0]
    torch.log_softmax(logits, dim=-1).gather(-1, packed.labels[:, None]).mean().backward()


def padded_pass(model: Any, batch: Batch) -> None:
    """One micro-batch, each sample padded to the longest."""
    import torch

    whole = [torch.cat(pair) for pair in batch]
    ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in whole], batch_first=True)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, ids[:, 1:, None]).mean().backward()


def measure(one: Callable[[Any, Batch], None], model: Any, batch: Batch, rows: int) -> tuple[float, dict[str, float]]:
    """Seconds of a whole pass, the best of some, and the share of each kind of operation in its CPU time."""
    from torch.profiler import ProfilerActivity, profile

    def whole() -> None:
        for start in range(0, len(batch), rows):
            one(model, batch[start : start + rows])

    whole()
    took = []
    for _ in range(_PASSES):
        began = time.perf_counter()
        whole()
        took.append(time.perf_counter() - began)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        whole()
    spent = dict.fromkeys((*KINDS, "rest"), 0.0)
    for event in profiler.key_averages():
        spent[kind_of(event.key)] += event.self_cpu_time_total
    total = sum(spent.values())
    return min(took), {kind: value / total for kind, value in spent.items()}


def kind_of(operation: str) -> str:
    """The kind of an operation of torch (`KINDS`), or "rest"."""
    name = operation.removeprefix("aten::").lstrip("_")
    return next((kind for kind, starts in KINDS.items() if name.startswith(starts)), "rest")


def main(arguments: Arguments) -> int:
    """Measure both ways, and print a table."""
    load_torch()
    import torch
    from transformers import AutoModelForCausalLM

    from cobalt_verl.cpu.shared_prompts import ATTENTION

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    batch = samples(arguments.world, arguments.seed)
    tokens = sum(len(prompt) + len(response) for prompt, response in batch)
    once = tokens - sum(len(prompt) for place, (prompt, _) in enumerate(batch) if place % _SAMPLES)
    print(f"{len(batch)} samples, {tokens:,} tokens, {once:,} with each prompt once")
    print("| | seconds | " + " | ".join((*KINDS, "rest")) + " |\n" + "|---" * (len(KINDS) + 3) + "|")
    for name, attention, one, rows in (
        ("padded, each sample by itself", "sdpa", padded_pass, _PADDED_ROWS),
        ("prompts shared", ATTENTION, shared_pass, _SHARED_ROWS),
    ):
        model = AutoModelForCausalLM.from_pretrained(arguments.world / "model", attn_implementation=attention)
        seconds, shares = measure(one, model, batch, rows)
        print(f"| {name} | {seconds:.2f} | " + " | ".join(f"{100 * share:.0f} %" for share in shares.values()) + " |")
    return 0


if __name__ == "__main__":
    run_script(Arguments, main)
