"""Train the seed model: a small Qwen3 from scratch on demonstrations, on the CPU.

The model learns responses and the programs of earlier turns, never user messages. The same seed and thread count give
the same weights. torch is imported on first use.
"""

import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cobalt.pocket.demonstrations import Demonstration, corpus, draw_demonstrations
from cobalt.pocket.tokenizer import CONTEXT, END_OF_TURN, learn_tokenizer
from cobalt.stage.environment import SHORT_WAIT, environment_variables
from cobalt.stage.progress import track

TOKENIZER_DEMONSTRATIONS = 600
"""Number of demonstrations that the vocabulary is learned from; a world needs at least as many."""

_IGNORED = -100
_WINDOW = 16

# Of Muon.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_TINY = 1e-7
_MOMENTUM = 0.95  # in Nesterov's form
_WEIGHT_DECAY = 0.05  # decoupled


@dataclass(frozen=True, slots=True)
class Recipe:
    """Size of the seed model and of its training."""

    hidden: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    feed_forward: int = 256
    demonstrations: int = 6_500
    """Number of demonstrations drawn; each is seen once."""
    batch: int = 8
    """Demonstrations a step."""
    learning_rate: float = 6e-3
    """Peak of the schedule: linear warm-up over 5 % of the steps, then down to 0."""
    initial: float = 0.06
    """Standard deviation of the initial weights; Qwen3's 0.02 starts far more slowly at this width."""
    special_cases: float = 0.0
    """Probability of special cases in the demonstrations (`demonstrations.Demonstrator`)."""


def train_seed_model(folder: Path, seed: int, recipe: Recipe, open_share: float = 0.0) -> None:
    """Draw demonstrations, learn tokenizer and model, save both to `folder` (made if missing).

    The seed decides demonstrations and weights. `open_share` is the world's share of open sentences
    (`problems.draw_task`).
    """
    # Threads wait for work as those of a training run do, unless the shell says otherwise.
    with environment_variables(GOMP_SPINCOUNT=os.environ.get("GOMP_SPINCOUNT", SHORT_WAIT)):
        import torch  # noqa: F401
    demonstrations = list(
        track(
            draw_demonstrations(recipe.demonstrations, seed, recipe.special_cases, open_share),
            total=recipe.demonstrations,
            desc="demonstrations",
        )
    )
    tokenizer = learn_tokenizer(corpus(demonstrations[-TOKENIZER_DEMONSTRATIONS:]))
    model = _new_model(recipe, tokenizer, seed)
    _train(model, tokenizer, demonstrations, recipe, seed)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _new_model(recipe: Recipe, tokenizer: Any, seed: int) -> Any:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        head_dim=recipe.hidden // recipe.heads,
        intermediate_size=recipe.feed_forward,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=recipe.initial,
        eos_token_id=end,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        torch_dtype="float32",
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[end], pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=0.6, top_p=0.95
    )
    return model


def _train(model: Any, tokenizer: Any, demonstrations: Sequence[Demonstration], recipe: Recipe, seed: int) -> None:
    import torch

    batches = list(_batches(_encode(tokenizer, demonstrations), recipe.batch, seed))
    inner = [weight for weight in model.model.layers.parameters() if weight.dim() == 2]
    known = {id(weight) for weight in inner}
    muon = Muon(inner, recipe.learning_rate)
    adam = torch.optim.AdamW(
        [weight for weight in model.parameters() if id(weight) not in known],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )
    warm_up = max(1, len(batches) // 20)
    model.train()
    progress = track(batches, desc="seed model", unit="step")
    for step, batch in enumerate(progress):
        share = min((step + 1) / warm_up, (len(batches) - step) / max(1, len(batches) - warm_up))
        for group in adam.param_groups:
            group["lr"] = recipe.learning_rate * share
        ids, labels = _tensors(batch, tokenizer.pad_token_id)
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        # Only response positions go through the vocabulary: a third of all.
        wanted = labels[:, 1:] != _IGNORED
        loss = torch.nn.functional.cross_entropy(model.lm_head(states[wanted]), labels[:, 1:][wanted])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(share)
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % 10 == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    model.eval()


Example = tuple[list[int], list[int]]
"""Token ids and labels of one demonstration, equally long; prompt positions are ignored."""


def _encode(tokenizer: Any, demonstrations: Sequence[Demonstration]) -> list[Example]:
    """Demonstrations as token ids, the response closed by `<|im_end|>`."""
    prompts = [
        tokenizer.apply_chat_template(list(item.messages), tokenize=False, add_generation_prompt=True)
        for item in demonstrations
    ]
    prompt_ids = tokenizer(prompts)["input_ids"]
    response_ids = tokenizer([item.response + END_OF_TURN for item in demonstrations])["input_ids"]
    return [
        (prompt + response, _history_labels(tokenizer, prompt) + response)
        for prompt, response in zip(prompt_ids, response_ids, strict=True)
    ]


def _history_labels(tokenizer: Any, prompt: list[int]) -> list[int]:
    """Labels for a prompt: the programs of earlier turns alone, without their first token.

    With that token the model would learn to begin a response without thinking.
    """
    header = tokenizer("<|im_start|>assistant\n")["input_ids"]
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    labels = [_IGNORED] * len(prompt)
    for start in range(len(prompt) - len(header)):
        if prompt[start : start + len(header)] == header:
            first = start + len(header) + 1
            last = prompt.index(end, first)
            labels[first : last + 1] = prompt[first : last + 1]
    return labels


def _batches(examples: list[Example], size: int, seed: int) -> Iterator[list[Example]]:
    """Shuffled batches of similar lengths: sorted inside windows of `_WINDOW` batches, then shuffled there."""
    rng = random.Random(f"pocket batches {seed}")
    for start in range(0, len(examples), size * _WINDOW):
        window = sorted(examples[start : start + size * _WINDOW], key=lambda item: len(item[0]))
        batches = [window[at : at + size] for at in range(0, len(window), size)]
        rng.shuffle(batches)
        yield from batches


def _tensors(batch: list[Example], padding: int) -> tuple[Any, Any]:
    """`(ids, labels)`, each (batch, longest); padding comes last, so that causal attention needs no mask."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = ([torch.tensor(row) for row in rows] for rows in zip(*batch, strict=True))
    pad = partial(pad_sequence, batch_first=True)
    return pad(ids, padding_value=padding), pad(labels, padding_value=_IGNORED)


class Muon:
    """The Muon optimiser for the seed model's matrices: momentum, orthogonalised by Newton-Schulz iterations.

    It needs about two thirds of AdamW's examples for the same loss, which decides whether minutes on two cores suffice.
    torch's own Muon works in bfloat16 and matrix by matrix, which is slow on a CPU; this one works in float32 and on
    stacks of matrices of the same shape.

    Args:
        matrices: Parameters of two dimensions.
        learning_rate: Scaled by 0.2 * sqrt(larger side), so that it compares with one for AdamW.
    """

    def __init__(self, matrices: Iterable[Any], learning_rate: float) -> None:
        import torch

        self._learning_rate = learning_rate
        stacks: dict[Any, list[Any]] = {}
        for matrix in matrices:
            stacks.setdefault(matrix.shape, []).append(matrix)
        self._stacks = [(stack, torch.zeros_like(torch.stack(stack), requires_grad=False)) for stack in stacks.values()]

    def step(self, share: float) -> None:
        """Apply the gradients with `share` of the learning rate, then drop them."""
        import torch

        rate = self._learning_rate * share
        with torch.no_grad():
            for stack, momenta in self._stacks:
                gradients = torch.stack([matrix.grad for matrix in stack])
                updates = _orthogonal(gradients.add_(momenta.mul_(_MOMENTUM).add_(gradients), alpha=_MOMENTUM))
                for matrix, update in zip(stack, updates, strict=True):
                    matrix.mul_(1 - rate * _WEIGHT_DECAY)
                    matrix.sub_(update, alpha=rate * 0.2 * max(matrix.shape) ** 0.5)
                    matrix.grad = None


def _orthogonal(stack: Any) -> Any:
    """The nearest (semi-)orthogonal matrices, roughly; `stack` has shape (count, rows, columns)."""
    tall = stack.shape[1] > stack.shape[2]
    result = stack.mT if tall else stack
    result = result / (result.norm(dim=(1, 2), keepdim=True) + _TINY)
    first, second, third = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = result @ result.mT
        result = first * result + (second * square + third * (square @ square)) @ result
    return result.mT if tall else result
