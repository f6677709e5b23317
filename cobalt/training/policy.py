"""The policy that training starts from: a folder, or a name on a model hub; its configuration and its sizes."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError


def policy_path(name: str) -> Path | str:
    """The path of a policy that is a folder, absolute; otherwise its hub name."""
    return Path(name).resolve() if Path(name).exists() else name


def architecture(path: str) -> Any:
    """The configuration of a model, a folder or a hub name (UserError: it has none on this machine)."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path)
    except Exception as error:  # noqa: BLE001 - a broken file makes the library raise whatever its reading ran into
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{path} has no usable config.json: {reason}") from None


def misfits(path: str, lengths: str, longest: int, *, on_cpu: bool) -> Iterator[str]:
    """Reasons why a model cannot be trained on samples of so many tokens: its length, and on a CPU its attention.

    `lengths` names the settings that `longest` follows from. For the model see `architecture`.
    """
    model = architecture(path).get_text_config()
    positions: int | None = getattr(model, "max_position_embeddings", None)
    window: int | None = getattr(model, "sliding_window", None)
    if positions and longest > positions:
        yield f"{lengths} = {longest} is more than the {positions} tokens of {path}: set smaller ones"
    slides = "sliding_attention" in (getattr(model, "layer_types", None) or ["sliding_attention"])
    if on_cpu and slides and window and window < longest:
        yield f"{lengths} = {longest}, and {path} attends to {window} tokens, unlike training on a CPU: set less"
    if on_cpu and getattr(model, "attn_logit_softcapping", None):
        yield f"{path} has attn_logit_softcapping, which training on a CPU does not have: take another model"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model as counts of numbers."""

    parameters: int
    adapter: int  # of adapters of rank 1 on all linear layers
    largest: int  # the larger of a layer and an embedding matrix, which FSDP2 gathers whole
    second: int  # the next one of them, which it may gather at the same time
    layers: int
    hidden: int  # of a token between two layers
    inside: int  # of a token within a layer, for the backward pass
    cache: int  # of a token while the engine generates: keys and values of all layers
    vocabulary: int


@functools.cache
def shape_of(path: str) -> Shape:
    """The sizes of a model (see `architecture`), whose layers are attention and a gated MLP as in Llama and Qwen.

    Raises:
        UserError: it has no configuration on this machine, or other layers.
    """
    model = architecture(path).get_text_config()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    sizes = [getattr(model, name, None) for name in names]
    if not all(sizes) or any(getattr(model, f"num_{name}", None) for name in ("experts", "local_experts")):
        raise UserError(f"{path} is of type {model.model_type}, whose layers are not attention and one gated MLP")
    hidden, inner, layers, heads, vocabulary = map(int, sizes)  # type: ignore[arg-type]  # none of them is None
    head = int(getattr(model, "head_dim", None) or hidden // heads)
    query, key = head * heads, head * int(getattr(model, "num_key_value_heads", None) or heads)
    layer, embedding = 2 * hidden * (query + key) + 3 * hidden * inner + 2 * hidden, vocabulary * hidden
    embeddings = [embedding] * (1 if model.tie_word_embeddings else 2)
    second, largest = sorted([*embeddings, layer, layer])[-2:]
    return Shape(
        parameters=sum(embeddings) + layers * layer + hidden,
        adapter=layers * (7 * hidden + 2 * query + 2 * key + 3 * inner),
        largest=largest,
        second=second,
        layers=layers,
        hidden=hidden,
        inside=8 * hidden + 4 * inner + 3 * (query + key),
        cache=2 * layers * key,
        vocabulary=vocabulary,
    )
