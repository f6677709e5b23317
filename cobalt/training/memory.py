"""How much memory of a GPU a run of offline training takes, estimated from the model's configuration alone.

An estimate of weights, gradients, optimiser and activations, without the fragments of an allocator: read it as "fits
easily", "fits barely" or "does not fit". What does not fit is refused. Nothing is measured here.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.training.configuration import trains_on_cpu
from cobalt.training.machine import visible_gpus
from cobalt.training.states import BYTES, architecture

_GIB = 2**30

_CONTEXT = _GIB
"""What a process on a GPU takes without its tensors: CUDA's context and NCCL's buffers."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on each GPU.

    Attributes:
        parameters: Number of parameters of the policy.
        trained: How many of them, or of its adapters, are trained.
        weights: The weights and the copy that is computed with.
        gradients: Gradients of what is trained.
        optimiser: Adam's two moments of what is trained.
        activations: What a micro-batch leaves for its backward pass, logits included.
    """

    parameters: int
    trained: int
    weights: float
    gradients: float
    optimiser: float
    activations: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.weights + self.gradients + self.optimiser + self.activations

    def lines(self) -> list[str]:
        """Sentences for a user."""
        parts = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimiser": self.optimiser,
            "activations of a micro-batch": self.activations,
        }
        return [
            f"{self.parameters / 1e6:,.1f} million parameters, {self.trained / 1e6:,.1f} million are trained",
            f"estimated memory of each GPU: {self.total / _GIB:.1f} GiB ("
            + ", ".join(f"{name} {value / _GIB:.1f}" for name, value in parts.items())
            + ")",
        ]


def estimate(config: Any) -> MemoryEstimate:
    """The estimate for a composed configuration of `cobalt.training.offline`; the model's weights are not loaded.

    Raises:
        UserError: the policy has no configuration.
    """
    import torch
    from transformers import AutoModelForCausalLM

    shape = architecture(config.model.path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    parameters = sum(weight.numel() for weight in model.parameters())
    rank = int(config.model.lora_rank)
    linear = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name
    ]
    trained = sum(rank * (module.in_features + module.out_features) for module in linear) if rank else parameters
    stored = BYTES[str(config.engine.model_dtype)]
    precision = config.engine.get("mixed_precision") or {}
    computed = BYTES[str(precision.get("param_dtype", "bf16"))]
    gpus = int(config.trainer.n_gpus_per_node)
    tokens = int(config.data.max_token_len_per_gpu)
    copy = computed if computed != stored else 0
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    inner = 2 * shape.intermediate_size + 8 * hidden  # what one layer keeps of a token, roughly
    kept = layers * hidden + inner if config.model.enable_gradient_checkpointing else layers * (hidden + inner)
    # Logits in the computing precision, and their log-softmax with its gradient in 32 bits.
    logits = shape.vocab_size * (computed + 8)
    return MemoryEstimate(
        parameters=parameters,
        trained=trained,
        weights=parameters * (stored / gpus + copy) + (trained * 4 / gpus if rank else 0),
        gradients=trained * 4 / gpus,
        optimiser=trained * 8 / gpus,
        activations=tokens * (kept * computed + logits),
    )


def check_fits(config: Any, found: MemoryEstimate) -> None:
    """Check that a run fits its GPUs: this machine's smallest, else one of `cobalt.gpu_memory_gib`.

    Args:
        config: The composed configuration of `cobalt.training.offline`.
        found: Its estimate. For a run on a CPU, and where the size of the GPUs is not known, nothing is checked.

    Raises:
        UserError: it does not fit; the message names overrides by which it does.
    """
    sizes = [size for size in visible_gpus() if size]
    stated = config.cobalt.gpu_memory_gib
    if stated is not None and (not isinstance(stated, int | float) or isinstance(stated, bool) or not stated > 0):
        raise UserError(f"cobalt.gpu_memory_gib is {stated!r}: it must be the memory of one GPU in GiB")
    card = float(min(sizes)) if sizes else (stated or 0) * _GIB
    if trains_on_cpu(config) or not card or found.total + _CONTEXT <= card:
        return
    helping = _remedies(config, card)
    raise UserError(
        f"the run takes about {(found.total + _CONTEXT) / _GIB:.1f} GiB of each GPU, which has {card / _GIB:.1f}: "
        + (f"set {' '.join(helping)}" if helping else "take more or larger GPUs, or a smaller model")
    )


def _remedies(config: Any, card: float) -> list[str]:
    """Overrides that make a run fit, the harmless ones first; none if there are no such overrides."""
    from omegaconf import OmegaConf

    changed, chosen = deepcopy(config), dict[str, str]()
    for key, value in _steps(config):
        OmegaConf.update(changed, key, OmegaConf.from_dotlist([f"x={value}"]).x)
        chosen[key] = value
        if estimate(changed).total + _CONTEXT <= card:
            return [f"{name}={given}" for name, given in chosen.items()]
    return []


def _steps(config: Any) -> Iterator[tuple[str, str]]:
    if not config.model.enable_gradient_checkpointing:
        yield "model.enable_gradient_checkpointing", "true"
    tokens, longest = int(config.data.max_token_len_per_gpu), int(config.data.max_length)
    while tokens > longest:
        tokens = max(longest, tokens // 2)
        yield "data.max_token_len_per_gpu", str(tokens)
    if not config.model.lora_rank:
        yield "model.lora_alpha", "64"
        yield "model.lora_rank", "32"
