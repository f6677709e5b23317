"""Resources of the machine or the cluster, and those that a training run needs: GPUs, Ray's CPUs, shared memory.

The figures follow from the composed configuration. How much memory a run needs is in `cobalt.training.memory`.
"""

import contextlib
import functools
import math
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from cobalt.stage.errors import UserError
from cobalt.training.cluster import named_cluster

RUN_SOCKET = "\0cobalt-training"
"""An abstract socket, which one process of a machine can hold, and which is free again however that process ends."""

_FEWEST_BYTES = 2**30  # of Ray's object store
_BYTES_OF_A_TOKEN = 40  # of a batch: three whole numbers of 64 bits, four of 32 bits
_RANK_BYTES = 64 * 2**20  # of shared memory for each GPU: messages of NCCL and of the engine between processes

_GPUS = """
import torch
print(*(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())))
"""


def trains_on_cpu(config: Any) -> bool:
    """Whether a composed configuration is for a machine without a GPU."""
    return str(config.trainer.device) == "cpu"


@functools.cache
def visible_gpus() -> list[int]:
    """Bytes of each GPU that torch sees on this machine, in a process of its own, because asking takes GPU memory."""
    asked = subprocess.run([sys.executable, "-c", _GPUS], capture_output=True, text=True, check=False)
    return [int(size) for size in asked.stdout.split()]


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


def capacity(config: Any, output: Path) -> tuple[float, float, float, float]:
    """Bytes that a run may have of the smallest GPU, a node's memory, the disk with what it has written, `/dev/shm`.

    Where this machine has none of the GPUs meant, `cobalt.gpu_memory_gib` counts. Infinite: not known.
    """
    cluster = bool(named_cluster())
    gpus = [] if cluster or trains_on_cpu(config) else visible_gpus()
    here = not cluster and (trains_on_cpu(config) or bool(gpus))
    gpu = float(min(gpus, default=(config.cobalt.gpu_memory_gib or math.inf) * 2**30))
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    written = (path for name in ("checkpoints", "model") for path in (output / name).rglob("*") if path.is_file())
    disk = shutil.disk_usage(folder).free + sum(path.stat().st_size for path in written)
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    text = limit.read_text(encoding="ascii").strip() if limit.exists() else "max"
    host = min(psutil.virtual_memory().total, math.inf if text == "max" else int(text))
    shared = shutil.disk_usage("/dev/shm").free if here else math.inf
    return gpu, host if here else math.inf, disk if here or cluster else math.inf, shared


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Refuse a second run that has a Ray of its own on this machine (UserError).

    VeRL hands weights to vLLM through sockets in /tmp, which it names by the number of its job on Ray. That number is
    the same on every new Ray, so an engine could wait for ever, or get the weights of another run.
    """
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(RUN_SOCKET)
        except OSError:
            raise UserError(
                "another training run is under way on this machine, and veRL cannot keep the weights of the two apart:"
                " wait for its end, or start both on one Ray cluster (docs/cluster.md)"
            ) from None
        yield
