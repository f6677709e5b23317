"""The platform "cpu": what veRL asks of a device, answered by `torch.cpu` and the operating system."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

_PAGE = resource.getpagesize()


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
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE


def _peak_bytes(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory_info(*_: Any) -> tuple[int, int]:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    available, total = (int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return available, total


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
class PlatformCPU(PlatformBase):  # type: ignore[misc]  # veRL is not typed
    """One logical device per Ray "GPU": veRL's resource pools know no other name (`ray.init(num_gpus=N)`)."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        """The device's name in torch."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """No vendor in particular."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """The module in place of `torch.cuda`."""
        return self._module

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

    def set_device(self, device_index: int) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: no work is pending on a CPU."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the device has no allocator of its own."""

    def empty_cache(self) -> None:
        """Do nothing: there is no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None, as veRL expects where there is no CUDA."""
        return None, None

    def communication_backend_name(self) -> str:
        """The collectives that run without CUDA."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """The variable that Ray sets for workers that hold logical GPUs; nothing reads it."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def ray_resource_name(self) -> str:
        """The resource that stands for a device in Ray; see the class."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """The same variables as on CUDA."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """No: weights travel to vLLM through shared memory."""
        return False

    def cudart(self) -> None:
        """None: there is no CUDA runtime."""
