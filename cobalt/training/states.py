"""Bytes that FSDP2 keeps of a policy on each rank, and of a checkpoint, from the shapes of the policy's parameters.

The policy is built on the meta device from its configuration, with adapters if the run has them; no weights are loaded.
The bytes are exact, because FSDP2 cuts each parameter along its first dimension into as many equal parts as there are
ranks. Activations are in `cobalt.training.activations`.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cobalt.stage.errors import UserError

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
"""Bytes of a number, by the name that veRL's engine takes."""

_TOKENIZER_BYTES = 32 * 2**20
"""Room for what a checkpoint has besides tensors: tokenizer, configuration, random states, the data loader's state."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the policy.

    Attributes:
        shape: Its whole shape.
        trained: Whether it has a gradient.
        group: Name of the module that FSDP2 gathers it with; empty: the rest of the model.
    """

    shape: tuple[int, ...]
    trained: bool
    group: str

    @property
    def count(self) -> int:
        """Its numbers."""
        return math.prod(self.shape)

    def share(self, ranks: int) -> int:
        """Numbers that the first rank keeps, which is as many as any: its part of the first dimension, rounded up."""
        return -(-self.shape[0] // ranks) * math.prod(self.shape[1:]) if self.shape else 1


def architecture(path: str) -> Any:
    """The configuration of a model.

    Args:
        path: A folder or a hub name.

    Raises:
        UserError: it has none on this machine.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path)
    except Exception as error:  # noqa: BLE001 - a broken file makes the library raise whatever its reading ran into
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{path} has no usable config.json: {said}") from None


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What decides the shapes of a policy, by veRL's names."""

    path: str
    lora_rank: int
    lora_alpha: int
    target_modules: str | tuple[str, ...]

    @classmethod
    def of(cls, model: Any) -> "PolicyChoice":
        """From veRL's section `model` of a composed configuration."""
        targets = model.target_modules
        chosen = targets if isinstance(targets, str) else tuple(targets)
        return cls(str(model.path), int(model.lora_rank), int(model.lora_alpha), chosen)


def meta_policy(choice: PolicyChoice) -> Any:
    """The policy on the meta device, with the adapters of the run.

    Raises:
        UserError: the model has no configuration on this machine.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(architecture(choice.path))
    if not choice.lora_rank:
        return policy
    from peft import LoraConfig, get_peft_model

    targets = choice.target_modules
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=choice.lora_rank,
        lora_alpha=choice.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
    )
    with torch.device("meta"):
        return get_peft_model(policy, adapters)


@functools.cache
def parameters(choice: PolicyChoice) -> tuple[Parameter, ...]:
    """All parameters of a policy with the groups that veRL makes of them: each layer, and untied embeddings.

    Raises:
        UserError: the model has no configuration on this machine.
    """
    policy = meta_policy(choice)
    layers = set(getattr(policy, "_no_split_modules", None) or ())
    tied = bool(getattr(policy.config, "tie_word_embeddings", False))
    groups = [
        name
        for name, module in policy.named_modules()
        if type(module).__name__ in layers
        or (not tied and name.rsplit(".", 1)[-1] in ("embed_tokens", "lm_head") and hasattr(module, "weight"))
    ]

    def group(name: str) -> str:
        return next((prefix for prefix in groups if name.startswith(f"{prefix}.")), "")

    return tuple(
        Parameter(tuple(weight.shape), bool(weight.requires_grad), group(name))
        for name, weight in policy.named_parameters()
    )


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of what a rank keeps during an update, the same on the GPU and, off-loaded, in host memory.

    Attributes:
        weights: Its part of the weights in the precision of training.
        gradients: Its part of the gradients.
        optimiser: Its part of Adam's two moments.
    """

    weights: int
    gradients: int
    optimiser: int

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.gradients + self.optimiser


def states(policy: Sequence[Parameter], ranks: int, stored: int) -> States:
    """What each of `ranks` ranks keeps.

    Args:
        policy: The parameters.
        ranks: How many ranks share them.
        stored: Bytes of a number of the weights, as of their gradients and moments.
    """
    trained = sum(weight.share(ranks) for weight in policy if weight.trained) * stored
    return States(sum(weight.share(ranks) for weight in policy) * stored, trained, 2 * trained)


def checkpoint_bytes(config: Any) -> int:
    """Bytes of one checkpoint of a run, all ranks together, without the exported policy (`export_bytes`).

    Args:
        config: The composed configuration of a training run, online or offline.

    Raises:
        UserError: the policy has no configuration on this machine.
    """
    return sum(_checkpoint_parts(config, parameters(PolicyChoice.of(_model(config)))))


def export_bytes(config: Any) -> int:
    """Bytes of the policy that a run exports at its end: all weights, in 16 bits after training on GPUs.

    Raises:
        UserError: the policy has no configuration on this machine.
    """
    width = 4 if str(config.trainer.device) == "cpu" else 2
    return sum(weight.count for weight in parameters(PolicyChoice.of(_model(config)))) * width + _TOKENIZER_BYTES


def _checkpoint_parts(config: Any, policy: Sequence[Parameter]) -> Iterator[int]:
    ranks = int(config.trainer.n_gpus_per_node) * int(config.trainer.get("nnodes", 1))
    actor = config.actor_rollout_ref.actor if "actor_rollout_ref" in config else config
    engine = actor.fsdp_config if "fsdp_config" in actor else actor.engine
    contents = list(actor.checkpoint.save_contents)
    stored = BYTES[str(engine.model_dtype)]
    if "model" in contents:
        yield ranks * states(policy, ranks, stored).weights
    if "optimizer" in contents:
        yield 2 * stored * sum(weight.count for weight in policy if weight.trained)
    yield _TOKENIZER_BYTES


def _model(config: Any) -> Any:
    return config.actor_rollout_ref.model if "actor_rollout_ref" in config else config.model
