"""The platform "cpu": what veRL asks of a device, answered by `torch.cpu` and the operating system."""

import contextlib
import resource
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(str):
    """The device "cpu", which formats as "0".

    veRL hands `current_device()` to torch as a device, and also writes it into `f"{device_name}:{index}"`.
    """

    __slots__ = ()

    def __format__(self, format_spec: str) -> str:
        return "0"


_CPU = _Device("cpu")


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, for functions that a CPU does not need: caches, memory shared between processes, memory limits."""


def _resident_bytes(*_: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _peak_bytes(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory_info(*_: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _device_module() -> ModuleType:
    """`torch.cpu` with the names of `torch.cuda` that veRL calls."""
    module = ModuleType("cobalt_verl.cpu.device", "torch.cpu, with the names of torch.cuda that veRL calls.")
    vars(module).update(
        {
            name: getattr(torch.cpu, name)
            for name in ("Stream", "StreamContext", "current_stream", "stream", "synchronize")
        },
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: _CPU,
        set_device=_nothing,
        get_device_name=lambda *_: "cpu",
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        empty_cache=_nothing,
        ipc_collect=_nothing,
        set_per_process_memory_fraction=_nothing,
        reset_peak_memory_stats=_nothing,
        memory_allocated=_resident_bytes,
        memory_reserved=_resident_bytes,
        max_memory_allocated=_peak_bytes,
        max_memory_reserved=_peak_bytes,
        mem_get_info=_memory_info,
    )
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):  # type: ignore[misc]  # veRL is not typed
    """The CPU as one device of CUDA's kind for each process.

    Ray knows it as a "GPU" (`ray.init(num_gpus=N)`), because veRL's resource pools know no other name.
    """

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()
    set_device = synchronize = empty_cache = set_allocator_settings = _nothing
    profiler_start = profiler_stop = cudart = _nothing
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)

    def is_available(self) -> bool:
        """Whether there is a device: always."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Whether veRL may choose this platform by itself: never, only `VERL_PLATFORM=cpu` chooses it."""
        return False

    def current_device(self) -> Any:
        """See `_Device`."""
        return _CPU

    def device_count(self) -> int:
        """One for each process."""
        return 1

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None, as veRL expects where there is no CUDA."""
        return None, None

    def communication_backend_name(self) -> str:
        """The collectives that run without CUDA."""
        return "gloo"

    def nvtx_range(self, msg: str) -> contextlib.AbstractContextManager[None]:
        """No profiler."""
        return contextlib.nullcontext()

    def is_ipc_supported(self) -> bool:
        """No: weights travel to vLLM through shared memory."""
        return False
