"""Two functions of torch that veRL calls as on a GPU, wrapped at run time; neither has a setting in veRL 0.9.1."""

import functools
from typing import Any

import torch.distributed
from torch.distributed import fsdp


def install() -> None:
    """Wrap both."""
    torch.distributed.init_process_group = _one_backend(torch.distributed.init_process_group)
    fsdp.CPUOffloadPolicy.__init__ = _without_pinning


def _one_backend(original: Any) -> Any:
    """Wrap `init_process_group` for veRL's group `cpu:gloo,{device}:{backend}`, as torch refuses "cpu" twice."""

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("backend") == "cpu:gloo,cpu:gloo":
            keywords["backend"] = "cpu:gloo"
        return original(*arguments, **keywords)

    return init_process_group


def _without_pinning(self: Any, pin_memory: bool = True) -> None:
    """`CPUOffloadPolicy.__init__`, by which veRL holds its reference model, without pinned memory, which needs CUDA."""
    self.pin_memory = pin_memory and torch.cuda.is_available()
