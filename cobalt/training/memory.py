"""Memory, shared memory and disk that a training run needs: arithmetic on its configuration, for both trainers.

For what a pass leaves to its backward pass there is a plain rule, within 30 % of what a model takes
(`tests/test_memory.py`). What an allocator loses in fragments is not counted.
"""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.training.machine import capacity, object_store_bytes, shared_memory_needed, trains_on_cpu
from cobalt.training.policy import Shape, shape_of

logger = logging.getLogger(__name__)

_REFUSED = 1.3  # a run that needs more than this share of what there is; above 1 it gets a warning
_FITS = 0.9  # of what there is, the most that a plan takes
_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}  # of a number
_GIB = 2**30
_CUDA = _GIB  # of a GPU, for a process without its tensors: context, NCCL, CUDA graphs of an engine that sleeps
_PROCESS = 3 * _GIB  # of host memory, for a process with torch, CUDA and veRL or vLLM
_SERVICES = 8 * _GIB  # Ray, the driver and the judge beside GPUs
_CPU_ONLINE, _CPU_OFFLINE = 5 * _GIB, _GIB  # processes of a run on a CPU; online with vLLM's cache of 1 GiB
_FILES = 64 * 2**20  # of a checkpoint or an export besides tensors, and the logs of a run
_PINNED = 4 / 3  # blocks of pinned memory have sizes that are powers of two
_CHUNK = 1024  # tokens whose log-probs are computed in 32 bits at a time

_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
_UNPLANNED = ("disk", "shared memory")  # which neither plans nor micro-batches change
_OFFLOADS = ("optimizer_offload", "param_offload", "offload_policy")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a run needs at the same time, by what takes them, and bytes that there are."""

    name: str
    parts: Mapping[str, float]
    limit: float

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())


class Run:
    """A run of either trainer (`needs`).

    Raises:
        UserError: the sizes of the model are not known (`shape_of`).
    """

    def __init__(self, config: Any, steps: int | None = None) -> None:
        """With no `steps` of the whole run no checkpoint is counted."""
        self.config, self.steps = config, steps
        self.on_cpu, self.online = trains_on_cpu(config), "actor_rollout_ref" in config
        self.actor = f"{_ACTOR}." if self.online else ""
        self.engine = f"{_ACTOR}.fsdp_config" if self.online else "engine"
        self.model = "actor_rollout_ref.model" if self.online else "model"
        self.reference = bool(self[f"{_ACTOR}.use_kl_loss"] or self["algorithm.use_kl_in_reward"])
        self.by_tokens = not self.online or bool(self[f"{_ACTOR}.use_dynamic_bsz"])
        size = "max_token_len" if self.by_tokens else "micro_batch_size"
        self.update = f"{_ACTOR}.ppo_{size}_per_gpu" if self.online else "data.max_token_len_per_gpu"
        scores = self.online and (self.reference or not self["algorithm.rollout_correction.bypass_mode"])
        self.scored = [f"{part}.log_prob_{size}_per_gpu" for part in (_ROLLOUT, _REF) if scores]
        self.answer = "data.max_response_length" if self.online else "data.max_length"
        self.longest = int(self[self.answer] + (self["data.max_prompt_length"] or 0))
        self.width = _BYTES.get(str(self[f"{self.engine}.mixed_precision.param_dtype"]), 2)
        self.served = _BYTES.get(str(self[f"{_ROLLOUT}.dtype"]), 2)

    @property
    def shape(self) -> Shape:
        """See `shape_of`, and its errors."""
        return shape_of(str(self[f"{self.model}.path"]))

    def __getitem__(self, key: str) -> Any:
        from omegaconf import OmegaConf

        return OmegaConf.select(self.config, key)

    def needs(self, gpu: float = inf, memory: float = inf, free: float = inf, shared: float = inf) -> list[Need]:
        """The peaks of a run: of a GPU in each phase, of a node's memory, of disk and `/dev/shm`; and what there is."""
        shape, each = self.shape, int(self["trainer.n_gpus_per_node"])
        stored = _BYTES.get(str(self[f"{self.engine}.model_dtype"]), 4)
        sharded = int(self[f"{self.engine}.fsdp_size"] or -1)
        ranks = sharded if sharded > 0 else each * (int(self["trainer.nnodes"]) if self.online else 1)
        adapters = int(self[f"{self.model}.lora_rank"]) * shape.adapter
        whole, trained = (shape.parameters + adapters) * stored, (adapters or shape.parameters) * stored
        optimizer = str(self[f"{self.actor}optim.optimizer"]).lower()
        kinds = {"8bit": 0.5, "sgd": 1, "muon": 1}  # numbers for each trained one; SGD's is its momentum, Adam's are 2
        moments = trained * next((count for kind, count in kinds.items() if kind in optimizer), 2)
        states = {"weights": whole / ranks, "gradients": trained / ranks, "optimizer": moments / ranks}
        other = [Need("disk", self._files({"model": whole, "optimizer": moments}), free)]
        messages = shared_memory_needed(self.config) if self.online else 0
        other += [Need("shared memory", {"batches, messages": messages}, shared)] * self.online
        work = self._pass(int(self[self.update] or 1), backward=True)
        if self.on_cpu:
            host: dict[str, float] = {"processes": _CPU_ONLINE if self.online else each * _CPU_OFFLINE}
            host |= {name: each * value for name, value in (states | work).items()} | {"shared memory": messages}
            if self.online:
                host["vLLM and reference"] = shape.parameters * (each * self.served + stored * self.reference)
            return [Need("host memory", host, memory), *other]
        no_moments, no_weights, away = (bool(self[f"{self.engine}.{name}"]) for name in _OFFLOADS)
        cuda = {"CUDA": (1 + self.online) * _CUDA}
        layers = {"gathered layers": (shape.largest + shape.second) * self.width}
        reduced = {"a layer's gradient": 0 if adapters else shape.largest * (self.width + 4)}
        needs = [Need("GPU, update", cuda | ({} if away else states) | layers | reduced | work, gpu)]
        pinned = {name: _PINNED * each * value for name, value in states.items()}
        host = {
            "processes": (1 + self.online) * each * _PROCESS + self.online * _SERVICES,
            "weights": pinned["weights"] * (away or no_weights),
            "gradients": pinned["gradients"] * away,
            "optimizer": pinned["optimizer"] * (away or no_moments),
        }
        if self.online:
            resting = {"weights": 0 if away else states["weights"]}
            resting["optimizer"] = 0 if away or no_moments else states["optimizer"]
            if self.scored:
                scores = self._pass(max(int(self[key] or 1) for key in self.scored), backward=False)
                needs.append(Need("GPU, log-probs", cuda | resting | layers | scores, gpu))
            share = float(self[f"{_ROLLOUT}.gpu_memory_utilization"]) * gpu
            engine = {"CUDA": _CUDA, "vLLM": 0 if share == inf else share}
            parallel = int(self[f"{_ROLLOUT}.tensor_model_parallel_size"])
            inside = {"CUDA": _CUDA, "weights": shape.parameters * self.served / parallel}
            inside["cache of a sample"] = self.longest * shape.cache * self.served / parallel
            needs.append(Need("GPU, engine", inside, share))
            needs.append(Need("GPU, sampling", engine | resting | ({"weights": 0} if no_weights else {}), gpu))
            host["reference"] = pinned["weights"] * (self.reference and not adapters)
            host["Ray's objects"] = object_store_bytes(self.config)
            host["loading"] = max(0, whole - host["optimizer"])
        return [*needs, Need("host memory", host, memory), *other]

    def _pass(self, size: int, *, backward: bool) -> dict[str, float]:
        """Memory that a micro-batch of the longest samples takes besides states."""
        shape, tokens = self.shape, max(size, self.longest) if self.by_tokens else size * self.longest
        answers = tokens
        if self.on_cpu and not self.by_tokens:  # prompts are computed once, and logits for responses alone
            answers = size * int(self[self.answer])
            tokens = answers + ceil(size / self[f"{_ROLLOUT}.n"]) * int(self["data.max_prompt_length"])
        layer = tokens * (self.width * shape.inside + 8 * shape.hidden * (self.width == 2))  # norms have 32 bits
        entropy = backward and bool(self[f"{_ACTOR}.entropy_coeff"] or self[f"{_ACTOR}.calculate_entropy"])
        # On a CPU: logits, the same by the temperature, log-probs, and a gradient, which is in place elsewhere.
        copies = 4 if self.on_cpu else 1 + entropy
        logits: float = shape.vocabulary * (self.width * copies * answers + 8 * min(tokens, _CHUNK))
        saved: float = shape.layers * layer
        if not backward or self[f"{self.model}.enable_gradient_checkpointing"]:  # one layer after the other
            inputs = backward * tokens * shape.layers * shape.hidden * self.width
            saved = inputs + max(0, (1.5 if backward else 0.5) * layer - logits)
        return {"activations": saved, "logits": logits}

    def _files(self, tensors: Mapping[str, float]) -> dict[str, float]:
        every, contents = int(self["trainer.save_freq"]), self[f"{self.actor}checkpoint.save_contents"]
        keep = self["cobalt.keep_checkpoints" if self.online else "trainer.max_ckpt_to_keep"]
        count = ceil((self.steps or 0) / every) if every > 0 else 0
        # The best checkpoint is kept as well, and the newest is written before others go.
        count = count if keep is None else min(count, int(keep) + 2)
        checkpoint = _FILES + sum(size for name, size in tensors.items() if name in contents)
        export = _FILES + self.shape.parameters * (4 if self.on_cpu else 2)
        return {f"checkpoints ({count})": count * checkpoint, "export": export * bool(count), "logs": _FILES}


def choose_plan(config: Any, output: Path) -> None:
    """Set `cobalt.plan` to the first of `cobalt.plans` that needs at most nine tenths of each limit, else to the last.

    Disk and shared memory do not count. The first plan stays where the sizes of the model are not known.

    Args:
        config: The composed configuration of either trainer, which is changed.
        output: The folder of the run.
    """
    from omegaconf import OmegaConf

    plans: Any = OmegaConf.to_container(config.cobalt.plans)
    if not plans or config.cobalt.plan != plans[0]:
        return
    if (output / "config.yaml").is_file():  # a run goes on with its plan, whatever memory there is now
        earlier = OmegaConf.select(OmegaConf.load(output / "config.yaml"), "cobalt.plan")
        plans = [OmegaConf.to_container(earlier)] if earlier and set(earlier) == set(plans[0]) else plans
    has = capacity(config, output)
    for plan in plans:
        OmegaConf.update(config, "cobalt.plan", plan, merge=False)
        run = Run(config)
        if "tokens" in plan:  # no micro-batch is smaller than a sample
            config.cobalt.plan.tokens = max(plan["tokens"], run.longest)
        with contextlib.suppress(UserError):
            if not all(need.total <= _FITS * need.limit for need in run.needs(*has) if need.name not in _UNPLANNED):
                continue
        return


def sizes_of(config: Any) -> str:
    """The settings of a run of either trainer that follow from its scale, the model and the machine, as a sentence."""
    run = Run(config)
    keys = [f"{run.actor}optim.lr", f"{run.actor}optim.optimizer", f"{_ACTOR}.use_kl_loss", f"{_ACTOR}.kl_loss_coef"]
    keys += ["data.max_prompt_length", run.answer, run.update, f"{run.model}.lora_rank"]
    keys += [f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes"]
    keys += [f"{run.engine}.{name}" for name in _OFFLOADS]
    return ", ".join(f"{key}={run[key]}" for key in keys if run[key])


def _fitting(config: Any, has: Sequence[float]) -> str:
    """Overrides of the sizes of micro-batches with which a run fits its memory; "" if there are none."""
    from omegaconf import OmegaConf

    run = Run(OmegaConf.create(OmegaConf.to_container(config, resolve=True)))
    sizes = {key: int(value) for key in (run.update, *run.scored) if (value := run[key])}
    least = run.longest if run.by_tokens else 1
    while any(size > least for size in sizes.values()):
        sizes = {key: max(least, size // 2) for key, size in sizes.items()}
        for key, size in sizes.items():
            OmegaConf.update(run.config, key, size)
        if all(need.total <= need.limit for need in run.needs(*has) if need.name not in _UNPLANNED):
            return " ".join(f"{key}={size}" for key, size in sizes.items())
    return ""


def check_memory(config: Any, output: Path, steps: int | None, *, force: bool = False) -> None:
    """Log the estimate; warn of a run that does not fit, and above 1.3 of what there is, without `force`: UserError."""
    try:
        run, has = Run(config, steps), capacity(config, output)
        needs = run.needs(*has)
    except UserError as error:
        logger.info("memory and disk were not estimated: %s", error)
        return
    worst = max(needs, key=lambda need: need.total / max(need.limit, 1))
    rows = ["estimate in GiB: what the run needs, of what there is"]
    for need in needs:
        parts = ", ".join(f"{name} {value / _GIB:.1f}" for name, value in need.parts.items() if value >= _GIB / 20)
        limit = "     ?" if need.limit == inf else f"{need.limit / _GIB:6.1f}"
        peak = ", the peak" if need is worst else ""
        rows.append(f"  {need.name:21}{need.total / _GIB:6.1f} of {limit}{peak} ({parts})")
    logger.info("%s", "\n".join(rows))
    if worst.total <= worst.limit:
        return
    short = f"the run needs about {worst.total / _GIB:.1f} GiB ({worst.name}), and there are {worst.limit / _GIB:.1f}"
    if worst.name == "disk":
        advice = "give --keep N to keep fewer checkpoints, a greater trainer.save_freq, or another --output_dir"
    elif worst.name == "shared memory":
        advice = "make /dev/shm larger (docker run --shm-size)"
    elif fits := _fitting(config, has):
        advice = f"it fits by the estimate with {fits}"
    else:
        offload = "" if run.on_cpu else f"set {run.engine}.offload_policy=true, "
        advice = f"{offload}lower {run.update} or {run.answer}, or take a larger machine or a smaller model"
    if worst.total > (1 if worst.name == "shared memory" else _REFUSED) * worst.limit and not force:
        raise UserError(f"{short}: {advice}; --force goes on all the same")
    logger.warning("%s: %s; the run goes on", short, advice)
