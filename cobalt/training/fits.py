"""Whether an online training run fits: memory of each GPU by phase, and memory of a node.

The states are exact (`cobalt.training.states`), activations are the model's own for a micro-batch in which every sample
is as long as the data allow (`cobalt.training.activations`). CUDA's own memory is a constant. Nothing is run on a GPU.
A run that does not fit is refused with the overrides that would make it fit.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.training.activations import Attention, MicroBatch, NeedsData, measure
from cobalt.training.configuration import trains_on_cpu
from cobalt.training.machine import visible_gpus
from cobalt.training.states import (
    BYTES,
    Parameter,
    PolicyChoice,
    architecture,
    parameters,
    states,
)

_GIB = 2**30

_CONTEXT = _GIB
"""What a process on a GPU takes without its tensors: CUDA's context and NCCL's buffers."""

_ASLEEP = _GIB
"""What the engine keeps while it sleeps: its context and its CUDA graphs."""

_PROCESS = 3 * _GIB
"""Host memory of a process that has imported torch, CUDA and veRL or vLLM; there are two for each GPU."""

_SERVICES = 8 * _GIB
"""Host memory of Ray, its object store, the driver and the judge with its sandboxes."""

_SAMPLER = 12
"""Bytes for each entry of the logits that the engine's sampler takes: three copies in 32 bits."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step: its parts by name, in bytes on each GPU, and their sum."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes on each GPU."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run takes.

    Attributes:
        card: Bytes of each GPU.
        phases: The phases of a step.
        cache: Bytes that the engine has left for the keys and values of its samples.
        sample: Bytes of the keys and values of one sample of the greatest length.
        host: Bytes of host memory on each node, by what takes them.
    """

    card: float
    phases: tuple[Phase, ...]
    cache: float
    sample: float
    host: dict[str, float]

    @property
    def short(self) -> float:
        """Bytes that are missing on a GPU, all phases together; 0: the run fits."""
        missing = sum(max(0.0, phase.total - self.card) for phase in self.phases)
        return missing + max(0.0, self.sample - self.cache)

    def lines(self) -> Iterator[str]:
        """Sentences for a user."""
        for phase in self.phases:
            parts = ", ".join(f"{name} {value / _GIB:.1f}" for name, value in phase.parts.items() if value >= _GIB / 20)
            of = f"{phase.total / _GIB:.1f} of {self.card / _GIB:.1f} GiB"
            yield f"estimated memory of each GPU, {phase.name}: {of} ({parts})"
        yield (
            f"the engine has {self.cache / _GIB:.1f} GiB for keys and values:"
            f" {int(self.cache // self.sample)} samples of the greatest length at a time"
        )
        parts = ", ".join(f"{name} {value / _GIB:.0f}" for name, value in self.host.items() if value >= _GIB / 2)
        yield f"estimated host memory of a node: {sum(self.host.values()) / _GIB:.0f} GiB ({parts})"


def check_fits(config: Any, errors: list[str], notes: list[str]) -> None:
    """Add to the errors that a run on GPUs does not fit, and to the notes what it takes; nothing for a run on a CPU.

    Args:
        config: The composed configuration of an online training run, of which the other checks found no error.
        errors: What stops the run; changed.
        notes: What a user should know; changed.
    """
    if trains_on_cpu(config):
        return
    try:
        card = card_bytes(config)
        found = estimate(config, card)
    except UserError as error:
        notes.append(f"memory was not estimated: {error}")
        return
    except NeedsData as error:
        notes.append(f"memory was not estimated: the model does not run without data ({error})")
        return
    notes.extend(found.lines())
    for phase in found.phases:
        if phase.total > card:
            errors.append(
                f"{phase.name} takes about {phase.total / _GIB:.1f} GiB of each GPU, which has {card / _GIB:.1f}"
            )
    if found.cache < found.sample:
        errors.append(
            f"the engine has {max(0.0, found.cache) / _GIB:.1f} GiB for keys and values, and one sample takes"
            f" {found.sample / _GIB:.1f}"
        )
    if found.short:
        helping = remedies(config, card)
        errors[-1] += f": set {' '.join(helping)}" if helping else ": take more or larger GPUs, or a smaller model"
    memory = _host_memory()
    if visible_gpus() and not os.environ.get("RAY_ADDRESS") and sum(found.host.values()) > memory:
        helping = host_remedies(config, card, memory)
        errors.append(
            f"a node needs about {sum(found.host.values()) / _GIB:.0f} GiB of host memory, and this machine has"
            f" {memory / _GIB:.0f}: "
            + (f"set {' '.join(helping)}" if helping else "spread the run over more nodes (trainer.nnodes)")
        )


def card_bytes(config: Any) -> float:
    """Memory of a GPU: of the smallest of this machine's that may be used, else `cobalt.gpu_memory_gib`.

    Raises:
        UserError: the machine has no GPU, or the run is for a cluster, and the setting is not a number above 0.
    """
    gpus = [] if os.environ.get("RAY_ADDRESS") else [size for size in visible_gpus() if size]
    if gpus:
        return float(min(gpus))
    stated = config.cobalt.gpu_memory_gib
    if not isinstance(stated, int | float) or isinstance(stated, bool) or not stated > 0:
        raise UserError("set cobalt.gpu_memory_gib to the memory of one GPU in GiB")
    return float(stated) * _GIB


def estimate(config: Any, card: float) -> Estimate:
    """What a run takes on GPUs of `card` bytes.

    Raises:
        UserError: the model has no configuration on this machine.
        NeedsData: the model's code does not run without data.
    """
    part = config.actor_rollout_ref
    policy = parameters(PolicyChoice.of(part.model))
    gpus = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
    engine = part.actor.fsdp_config
    stored, computed = BYTES[str(engine.model_dtype)], _computed(engine)
    kept = states(policy, gpus, stored)
    away = bool(engine.offload_policy)
    gathered = _gathered(policy, BYTES[computed])
    weights = 0 if away else kept.weights
    moments = 0 if away or engine.optimizer_offload else kept.optimiser
    fixed = {"CUDA": float(_CONTEXT + _ASLEEP)}

    train = measure(part.model, _update_batch(config), computed)
    reduced = max(_groups(policy, trained=True).values(), default=0) * BYTES["fp32"]
    update = fixed | {"states": 0.0 if away else float(kept.total), "gathered layers": float(gathered + reduced)}
    update["activations"] = float(train)
    if not away:  # Adam makes one more copy of what a rank trains; activations are gone by then
        update["activations"] = max(update["activations"], kept.gradients - update["gathered layers"])

    logprobs = [measure(part.model, batch, computed) for batch in _log_prob_batches(config)]
    scored = fixed | {"states": float(weights + moments), "gathered layers": float(gathered)}
    scored["activations"] = float(max(logprobs, default=0))

    served = 0.0 if engine.param_offload else float(weights)
    share = float(part.rollout.gpu_memory_utilization) * card
    generation = {"CUDA": float(_CONTEXT), "states": served + moments, "engine": share}
    cache, sample = _cache(config, policy, share)
    return Estimate(
        card=card,
        phases=(Phase("generation", generation), Phase("log-probs", scored), Phase("update", update)),
        cache=cache,
        sample=sample,
        host=_host(config, policy, gpus),
    )


def _computed(engine: Any) -> str:
    return str((engine.get("mixed_precision") or {}).get("param_dtype", "bf16"))


def _longest(config: Any) -> int:
    return int(config.data.max_prompt_length + config.data.max_response_length)


def _attention(config: Any) -> Attention:
    """The mask alone costs memory: with flash-attn, or with this project's stand-in for it, there is none."""
    model = config.actor_rollout_ref.model
    wanted = (model.override_config or {}).get("attn_implementation", "flash_attention_2")
    inside = "packed_sdpa" in str(model.external_lib or "")
    return "mask" if wanted in ("sdpa", "eager") and not inside else "flash"


def _update_batch(config: Any) -> MicroBatch:
    part = config.actor_rollout_ref
    entropy = bool(part.actor.entropy_coeff) or bool(part.actor.calculate_entropy)
    compiled = bool(part.actor.fsdp_config.use_torch_compile)
    rows, length = _shape(config, part.actor.use_dynamic_bsz, "ppo_micro_batch_size_per_gpu", part.actor)
    return MicroBatch(
        rows=rows,
        length=length,
        packed=bool(part.model.use_remove_padding),
        attention=_attention(config),
        checkpointing=bool(part.model.enable_gradient_checkpointing),
        entropy="no" if not entropy else "compiled" if compiled else "whole",
    )


def _log_prob_batches(config: Any) -> Iterator[MicroBatch]:
    """Of the actor, which computes the entropy too, and of the reference policy."""
    part = config.actor_rollout_ref
    wanted = [("rollout", not config.algorithm.rollout_correction.bypass_mode), ("ref", _has_reference(config))]
    for name, used in wanted:
        if not used:
            continue
        section = part[name]
        rows, length = _shape(config, section.log_prob_use_dynamic_bsz, "log_prob_micro_batch_size_per_gpu", section)
        compiled = bool(part.actor.fsdp_config.use_torch_compile)
        yield MicroBatch(
            rows=rows,
            length=length,
            packed=bool(part.model.use_remove_padding),
            attention=_attention(config),
            checkpointing=False,
            entropy="no" if name == "ref" else "compiled" if compiled else "whole",
            backward=False,
        )


def _shape(config: Any, dynamic: bool, key: str, section: Any) -> tuple[int, int]:
    """Samples of a micro-batch, and tokens of each."""
    longest = _longest(config)
    if not dynamic:
        return int(section[key]), longest
    limit = key.replace("micro_batch_size", "max_token_len")
    return max(1, int(section[limit]) // longest), longest


def _has_reference(config: Any) -> bool:
    return bool(config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward)


def _groups(policy: Sequence[Parameter], *, trained: bool = False) -> dict[str, int]:
    """Numbers of each group that FSDP2 gathers at once."""
    found: dict[str, int] = {}
    for weight in policy:
        found[weight.group] = found.get(weight.group, 0) + (weight.count if weight.trained or not trained else 0)
    return found


def _gathered(policy: Sequence[Parameter], width: int) -> int:
    """Bytes of the two largest groups: one is computed with while the next is fetched."""
    return sum(sorted(_groups(policy).values())[-2:]) * width


def _cache(config: Any, policy: Sequence[Parameter], share: float) -> tuple[float, float]:
    """Bytes that the engine has for keys and values, and bytes that one sample takes of them."""
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    shape = architecture(str(model.path))
    parallel = int(rollout.tensor_model_parallel_size)
    width = BYTES.get(str(rollout.dtype), 2)
    batch = MicroBatch(1, int(rollout.max_num_batched_tokens), checkpointing=False, backward=False)
    logits = batch.length * shape.vocab_size * width  # the engine computes those of the last tokens alone
    work = max(0, measure(model, batch, "bf16") - logits) / parallel
    sampler = int(rollout.max_num_seqs) * shape.vocab_size * (width + _SAMPLER)
    cache = share - sum(weight.count for weight in policy) * width / parallel - work - sampler - _CONTEXT
    heads = max(1, shape.num_key_value_heads // parallel)
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    length = int(rollout.max_model_len or shape.max_position_embeddings)
    return cache, float(2 * shape.num_hidden_layers * heads * size * width * length)


def _host(config: Any, policy: Sequence[Parameter], gpus: int) -> dict[str, float]:
    """Bytes of host memory on a node; pinned blocks have sizes that are powers of two."""
    part = config.actor_rollout_ref
    engine, each = part.actor.fsdp_config, int(config.trainer.n_gpus_per_node)
    stored = BYTES[str(engine.model_dtype)]

    def pinned(weights: Sequence[Parameter]) -> float:
        return float(each * sum(1 << (weight.share(gpus) * stored - 1).bit_length() for weight in weights))

    trained = [weight for weight in policy if weight.trained]
    lora = bool(part.model.lora_rank)
    away = bool(engine.offload_policy)
    whole = float(sum(weight.count for weight in policy))
    # The first rank reads the weights; all of them do where embeddings are tied, because veRL then uses no meta device.
    readers = each if architecture(str(part.model.path)).tie_word_embeddings else 1
    resident = {
        "reference policy": pinned(policy) if _has_reference(config) and not lora else 0.0,
        "off-loaded weights": pinned(policy) if away or engine.param_offload else 0.0,
        "off-loaded optimiser": (2 + away) * pinned(trained) if away or engine.optimizer_offload else 0.0,
        # With adapters the engine keeps its weights while it sleeps.
        "engine's weights": whole * 2 * each / int(part.rollout.tensor_model_parallel_size) if lora else 0.0,
    }
    loading = readers * whole * stored
    before = resident["reference policy"] + resident["off-loaded weights"]
    return {
        "processes": float(2 * each * _PROCESS + _SERVICES),
        **resident,
        "loading": max(0.0, before + loading - sum(resident.values())),
    }


def _host_memory() -> float:
    """Bytes of this machine's memory, or of the container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    return float(total if limit == "max" else min(total, int(limit)))


# --- overrides that help

_Steps = Callable[[Any], Iterator[list[str]]]


def remedies(config: Any, card: float) -> list[str]:
    """Overrides that make a run fit, the harmless ones first; none if there are no such overrides.

    They change memory and speed alone, with two exceptions: with cobalt.loss_agg=micro_batch the size of a micro-batch
    of the update is part of the loss, and adapters train other weights.
    """
    chosen: list[list[str]] = []
    short = estimate(config, card).short
    for steps in _STEPS:
        for step in steps(_with(config, chosen)):
            if not short:
                break
            changed = _with(config, [*chosen, step])
            left = estimate(changed, card).short
            if left < short:
                chosen, short = [*chosen, step], left
    if short:
        return []
    for step in list(chosen):
        rest = [other for other in chosen if other is not step]
        if not estimate(_with(config, rest), card).short:
            chosen = rest
    last = {setting.split("=")[0]: setting for step in chosen for setting in step}
    return list(last.values())


def host_remedies(config: Any, card: float, memory: float) -> list[str]:
    """Overrides by which a node needs no more than `memory` bytes and the GPUs are still large enough; none if none do.

    They keep on the GPUs what would be in host memory, one thing after another.
    """
    chosen: list[list[str]] = []
    needed = sum(estimate(config, card).host.values())
    engine = "actor_rollout_ref.actor.fsdp_config"
    for step in ([f"{engine}.{name}=false"] for name in ("optimizer_offload", "param_offload", "offload_policy")):
        tried = estimate(_with(config, [*chosen, step]), card)
        left = sum(tried.host.values())
        if needed > memory and left < needed and not tried.short:
            chosen, needed = [*chosen, step], left
    return [setting for step in chosen for setting in step] if needed <= memory else []


def _with(config: Any, steps: list[list[str]]) -> Any:
    from omegaconf import OmegaConf

    changed = deepcopy(config)
    for step in steps:
        for setting in step:
            key, _, value = setting.partition("=")
            OmegaConf.update(changed, key, OmegaConf.from_dotlist([f"x={value}"]).x)
    return changed


def _smaller(key: str, *sections: str) -> _Steps:
    """Half the number of samples of a micro-batch, again and again."""

    def steps(config: Any) -> Iterator[list[str]]:
        parts = [config.actor_rollout_ref[section] for section in sections]
        dynamic = any(part.get("use_dynamic_bsz") or part.get("log_prob_use_dynamic_bsz") for part in parts)
        size = 1 if dynamic else min(int(part[key] or 1) for part in parts)
        while size > 1 and size % 2 == 0:
            size //= 2
            yield [f"actor_rollout_ref.{section}.{key}={size}" for section in sections]

    return steps


def _switch_on(key: str) -> _Steps:
    def steps(config: Any) -> Iterator[list[str]]:
        yield [f"actor_rollout_ref.{key}=true"]

    return steps


def _less_for_the_engine(config: Any) -> Iterator[list[str]]:
    tenths = round(float(config.actor_rollout_ref.rollout.gpu_memory_utilization) * 10) - 1
    for share in range(tenths, 2, -1):
        yield [f"actor_rollout_ref.rollout.gpu_memory_utilization={share / 10}"]


def _engine_on_more_gpus(config: Any) -> Iterator[list[str]]:
    size = int(config.actor_rollout_ref.rollout.tensor_model_parallel_size) * 2
    while int(config.trainer.n_gpus_per_node) % size == 0:
        yield [f"actor_rollout_ref.rollout.tensor_model_parallel_size={size}"]
        size *= 2


def _adapters(config: Any) -> Iterator[list[str]]:
    model = "actor_rollout_ref.model"
    if not config.actor_rollout_ref.model.lora_rank:
        rollout = "actor_rollout_ref.rollout.load_format=safetensors"
        yield [f"{model}.lora_rank=32", f"{model}.lora_alpha=32", rollout]


_STEPS: tuple[_Steps, ...] = (
    _switch_on("model.use_remove_padding"),
    _switch_on("model.enable_gradient_checkpointing"),
    _smaller("log_prob_micro_batch_size_per_gpu", "rollout", "ref"),
    _switch_on("actor.fsdp_config.optimizer_offload"),
    _switch_on("actor.fsdp_config.param_offload"),
    _less_for_the_engine,
    _engine_on_more_gpus,
    _smaller("ppo_micro_batch_size_per_gpu", "actor"),
    _switch_on("actor.fsdp_config.offload_policy"),
    _adapters,
)
