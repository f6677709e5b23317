"""What a training run needs of the machine or the cluster: GPUs, Ray's CPUs, shared memory; and what is there.

The figures follow from the composed configuration. How much memory a run needs is in `cobalt.training.memory`.
"""

import contextlib
import functools
import math
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cobalt.stage.errors import UserError
from cobalt.training.configuration import trains_on_cpu

SHARED_MEMORY = Path("/dev/shm")

_ADDRESS = "\0cobalt-training"
"""An abstract socket, which one process of a machine can hold, and which is free again however that process ends."""

_CPUS_OF_A_RANK = 3  # CPUs that veRL reserves with each GPU, whatever its processes use
_FEWEST_CPUS = 16  # that the Ray of a run counts; it binds nothing to a core
_FEWEST_BYTES = 2**30  # of Ray's object store
_BYTES_OF_A_TOKEN = 40  # of a batch: three whole numbers of 64 bits, four of 32 bits
_RANK_BYTES = 64 * 2**20  # of shared memory for each GPU: messages of NCCL and of the engine between processes

_GPUS = """
import torch
print(*(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())))
"""


@functools.cache
def visible_gpus() -> list[int]:
    """Bytes of each GPU that torch sees on this machine, in a process of its own, because asking takes GPU memory."""
    asked = subprocess.run([sys.executable, "-c", _GPUS], capture_output=True, text=True, check=False)
    return [int(size) for size in asked.stdout.split()]


def gpus_of(config: Any) -> int:
    """GPUs of a run, all nodes together; logical ones on a CPU."""
    return int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)


def cpus_needed(config: Any, judge: float = 0.0) -> int:
    """CPUs that Ray must be able to reserve: for the ranks, for TransferQueue, for replicas of the judge (`judge`).

    One more is free, on which Ray can start an actor that reserves none.
    """
    return _CPUS_OF_A_RANK * gpus_of(config) + _storage_units(config) + 1 + math.ceil(judge) + 1


def _storage_units(config: Any) -> int:
    return int(config.transfer_queue.backend.SimpleStorage.num_data_storage_units)


def logical_cpus(config: Any) -> int:
    """CPUs that the Ray of a run counts on this machine, whatever it has: with fewer, veRL would wait for ever."""
    return max(_FEWEST_CPUS, os.cpu_count() or 1, cpus_needed(config))


def check_cluster(nodes: Sequence[Mapping[str, float]], config: Any, judge: float) -> None:
    """Check that a cluster can place a run, which otherwise would wait for ever without a word.

    Args:
        nodes: Resources of each living node, such as {"CPU": 64.0, "GPU": 8.0}.
        config: The composed configuration.
        judge: CPUs that the judge's replicas reserve.

    Raises:
        UserError: there are too few nodes with enough GPUs and CPUs, or too few CPUs in all.
    """
    each, wanted = int(config.trainer.n_gpus_per_node), int(config.trainer.nnodes)
    # TransferQueue shares its units out over the nodes with GPUs, whatever these have left.
    sharing = max(1, sum(node.get("GPU", 0) > 0 for node in nodes))
    cpus = _CPUS_OF_A_RANK * each + math.ceil(_storage_units(config) / sharing)
    able = sum(node.get("GPU", 0) >= each and node.get("CPU", 0) >= cpus for node in nodes)
    total, needed = sum(node.get("CPU", 0) for node in nodes), cpus_needed(config, judge)
    if able < wanted or total < needed:
        raise UserError(
            f"the run asks for {wanted} nodes with {each} GPUs and {cpus} CPUs each and {needed} CPUs in all, and the"
            f" cluster of RAY_ADDRESS has {able} such nodes and {total:g} CPUs: set trainer.n_gpus_per_node and"
            " trainer.nnodes, or start its nodes with more (ray start --num-cpus --num-gpus)"
        )


def object_store_bytes(config: Any) -> int:
    """Size of Ray's object store: a batch of the longest samples of all turns, at least 1 GiB."""
    turns = int(config.cobalt.multi_turn.turns) if config.cobalt.get("multi_turn") else 1
    samples = int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n) * turns
    tokens = int(config.data.max_prompt_length + config.data.max_response_length)
    return max(_FEWEST_BYTES, samples * tokens * _BYTES_OF_A_TOKEN)


def shared_memory_needed(config: Any) -> int:
    """Bytes of shared memory that a run takes on this machine; on a CPU the weights go to the engine through it."""
    bucket = int(config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes) * 2**20
    messages = 2 * bucket if trains_on_cpu(config) else int(config.trainer.n_gpus_per_node) * _RANK_BYTES
    return object_store_bytes(config) + messages


def check_shared_memory(config: Any) -> None:
    """Refuse a run that takes more shared memory than this machine has free (UserError)."""
    free, needed = shutil.disk_usage(SHARED_MEMORY).free, shared_memory_needed(config)
    if free < needed:
        raise UserError(
            f"{SHARED_MEMORY} has {free >> 20} MiB free, and training needs {needed >> 20}:"
            " make it larger (docker run --shm-size)"
        )


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a run may have; infinite: not known, or the run is for other machines."""

    gpu: float  # of the smallest GPU
    host: float  # of a node's memory
    disk: float  # free at the output, with what the run has already written there


def room(config: Any, output: Path) -> Room:
    """What this machine has for a run, or the GPUs of `cobalt.gpu_memory_gib` where it does not have those meant."""
    cluster = bool(os.environ.get("RAY_ADDRESS"))
    gpus = [] if cluster or trains_on_cpu(config) else visible_gpus()
    here = not cluster and (trains_on_cpu(config) or bool(gpus))
    gpu = float(min(gpus, default=(config.cobalt.gpu_memory_gib or math.inf) * 2**30))
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    written = (path for name in ("checkpoints", "model") for path in (output / name).rglob("*") if path.is_file())
    disk = shutil.disk_usage(folder).free + sum(path.stat().st_size for path in written)
    return Room(gpu, _host_memory() if here else math.inf, disk if here or cluster else math.inf)


def _host_memory() -> int:
    """Bytes of this machine's memory, or of the container's limit."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.exists() else "max"
    total: int = psutil.virtual_memory().total
    return total if text == "max" else min(total, int(text))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep other runs that have a Ray of their own from this machine meanwhile.

    VeRL hands weights to vLLM through sockets in /tmp, which it names by the number of its job on Ray. That number is
    the same on every new Ray, so an engine could wait for ever, or get the weights of another run.

    Raises:
        UserError: there is such a run.
    """
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(_ADDRESS)
        except OSError:
            raise UserError(
                "another training run is under way on this machine, and veRL cannot keep the weights of the two apart:"
                " wait for its end, or start both on one Ray cluster (docs/cluster.md)"
            ) from None
        yield
