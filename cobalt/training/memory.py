"""How much memory of a GPU a run of offline training takes, estimated from the model's configuration alone.

An estimate of weights, gradients, optimiser and activations, without the fragments of an allocator: read it as "fits
easily", "fits barely" or "does not fit". Nothing is measured here.
"""

from dataclasses import dataclass
from typing import Any

from cobalt.training.states import BYTES, architecture

_GIB = 2**30


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
