"""The settings of the vLLM engine as a Ray Serve app. Ray is not imported, so that wrong settings show at once."""

from typing import Literal

from pydantic import ConfigDict, Field

from cobalt.engine.http_settings import HttpSettings

ENVIRONMENT_PREFIX = "COBALT_VLLM_"
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one on ARM


class VllmSettings(HttpSettings):
    """The engine and its deployment.

    Attributes:
        model: Hub name, or a folder with a Hugging Face model. Required.
        num_replicas: Number of engines (paper: 2).
        tensor_parallel_size: Number of GPUs for one engine (paper: 2).
        device: "auto": GPUs if the Ray cluster has any, and the CPU otherwise.
        dtype: Type of weights and activations; "auto": vLLM's choice, the model's type or bfloat16 for a model in
            float32. None: "auto", but float32 on a CPU without arithmetic in bfloat16, which is several times faster
            there and takes twice the memory.
        max_model_len: Longest prompt and completion together, in tokens; None: the model's own limit.
        max_num_seqs: Largest number of completions in one batch.
        gpu_memory_utilization: Share of a GPU's memory that vLLM may use.
        kv_cache_gib: Size of the key-value cache on a CPU, in GiB.
        cpu_threads: Number of threads for the model's arithmetic on a CPU.
        enforce_eager: Use no CUDA graphs and no compilation (paper: True); starts a minute or two faster on GPUs, and
            generates more slowly where few completions are in a batch. None: False on GPUs, True on a CPU.
        trust_remote_code: Run code that comes with the model.
        seed: Seed of the engine; calls that have a seed of their own do not depend on it.
        max_ongoing_requests: Calls that a replica takes at once.
        served_model_name: The model's name on OpenAI's routes (`cobalt.serving.openai_routes`) and in manifests; None:
            the name of its folder or Hub entry with a short digest (`cobalt.engine.model_name`).
        max_completions: Largest number of completions (`n`) of an HTTP request.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str
    num_replicas: int = Field(1, ge=1)
    tensor_parallel_size: int = Field(1, ge=1)
    device: Literal["auto", "cpu", "gpu"] = "auto"
    dtype: str | None = None
    max_model_len: int | None = Field(None, ge=1)
    max_num_seqs: int = Field(256, ge=1)
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    kv_cache_gib: int = Field(1, ge=1)
    cpu_threads: int = Field(1, ge=1)
    enforce_eager: bool | None = None
    trust_remote_code: bool = False
    seed: int = 0
    max_ongoing_requests: int = Field(4096, ge=1)
    served_model_name: str | None = Field(None, min_length=1)
    max_completions: int = Field(1024, ge=1)


def computes_in_bfloat16(cpuinfo: str) -> bool:
    """Whether a CPU has instructions for arithmetic in bfloat16, by the text of its /proc/cpuinfo."""
    return not _BFLOAT16.isdisjoint(cpuinfo.split())
