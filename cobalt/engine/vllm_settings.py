"""The settings of a vLLM engine, wherever it runs. vLLM is not imported, so that wrong settings show at once."""

import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from cobalt.engine.model_check import check_folder, model_path, text_config
from cobalt.stage.errors import UserError

ENVIRONMENT_PREFIX = "COBALT_VLLM_"
_WIDE = 512  # hidden size from which on layers are shared by all cores
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one on ARM


class VllmSettings(BaseModel):
    """The model, and how it is run.

    Attributes:
        model: Hub name, or a folder with a Hugging Face model. Required.
        tensor_parallel_size: Number of GPUs for one engine (paper: 2).
        device: "auto": the one that the installed vLLM is built for; on a Ray cluster, GPUs if it has any.
        dtype: Type of weights and activations; "auto": vLLM's choice, the model's type or bfloat16 for a model in
            float32. None: "auto", but float32 on a CPU without arithmetic in bfloat16, which is several times faster
            there and takes twice the memory.
        max_model_len: Longest prompt and completion together, in tokens; None: the model's own limit.
        max_num_seqs: Largest number of completions in one batch.
        gpu_memory_utilization: Share of a GPU's memory that vLLM may use.
        kv_cache_gib: Size of the key-value cache on a CPU, in GiB.
        cpu_threads: Number of threads for the model's arithmetic on a CPU; None: by the model (`threads_for`).
        enforce_eager: Use no CUDA graphs and no compilation (paper: True); starts a minute or two faster on GPUs, and
            generates more slowly where few completions are in a batch. None: False on GPUs, True on a CPU.
        trust_remote_code: Run code that comes with the model.
        seed: Seed of the engine; calls that have a seed of their own do not depend on it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str
    tensor_parallel_size: int = Field(1, ge=1)
    device: Literal["auto", "cpu", "gpu"] = "auto"
    dtype: str | None = None
    max_model_len: int | None = Field(None, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    kv_cache_gib: int = Field(1, ge=1)
    cpu_threads: int | None = Field(None, ge=1)
    enforce_eager: bool | None = None
    trust_remote_code: bool = False
    seed: int = 0


def threads_for(model: str) -> int:
    """Threads for a model's arithmetic on a CPU: all cores, or 1 if its layers are too narrow to be divided.

    With the pocket world's model (hidden size 256) the threads would wait for each other, and the judge for a core.
    """
    path = model_path(model)
    width = text_config(path).get("hidden_size") if path else None
    return 1 if isinstance(width, int) and width < _WIDE else len(os.sched_getaffinity(0))


Settings = TypeVar("Settings", bound=VllmSettings)


def with_checked_model(settings: Settings) -> Settings:
    """The settings with a model folder's absolute path, so that they hold in any working folder.

    Raises UserError: the folder holds no model or no chat template, or the model takes fewer tokens than are asked for.
    """
    path = model_path(settings.model)
    if path is None:
        return settings
    check_folder(path)
    config = text_config(path)
    positions, rope = config.get("max_position_embeddings"), config.get("rope_scaling") or config.get("rope_parameters")
    if positions and "factor" not in (rope or {}) and (settings.max_model_len or 0) > positions:
        raise UserError(f"setting 'max_model_len': {settings.max_model_len}, and {path} takes {positions} tokens")
    # Links are not followed: a model is named after the folder that the user chose.
    return settings.model_copy(update={"model": os.path.abspath(path)})  # noqa: PTH100


def default_dtype(*, on_gpu: bool) -> str:
    """The type of weights and activations where none is set: float32 on a CPU without arithmetic in bfloat16."""
    instructions = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return "float32" if not on_gpu and _BFLOAT16.isdisjoint(instructions) else "auto"
