"""The executor that vLLM runs in the engine's process if an engine needs only one process.

vLLM itself imports this module in that process, by the class that the service names.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from cobalt.engine.vllm_process import end_with


class BoundExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM is not typed
    """vLLM's executor for one process, which ends with its parent.

    Without it, the engine's process stays, with gigabytes of memory, when the replica that it belongs to is killed.
    """

    def _init_executor(self) -> None:
        end_with(os.getppid())
        with one_gloo_device():
            super()._init_executor()


@contextlib.contextmanager
def one_gloo_device() -> Iterator[None]:
    """Let the process groups of gloo that are made inside share one device, and so one thread.

    Each of vLLM's dozen groups would have a device of its own, and the thread of each wakes a hundred times a second,
    also while the process has nothing to do. On few cores this interrupts whatever computes there.
    """
    made: list[Any] = []

    class Sharing(distributed_c10d.ProcessGroupGloo):  # type: ignore[misc]  # torch types it as a value
        """A group on the shared device, which the first group makes."""

        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            options = self._Options()
            made[:] = made or [self.create_default_device()]
            options._devices, options._timeout = made, timeout
            super().__init__(store, rank, size, options)

    own = distributed_c10d.ProcessGroupGloo
    distributed_c10d.ProcessGroupGloo = Sharing
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = own
