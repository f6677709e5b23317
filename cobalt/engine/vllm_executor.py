"""The executor that vLLM runs in the engine's process if an engine needs only one process.

vLLM itself imports this module in that process, by the class that the service names.
"""

import os
import select
import threading

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class BoundExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM is not typed
    """vLLM's executor for one process, which ends with its parent.

    Without it, the engine's process stays, with gigabytes of memory, when the replica that it belongs to is killed.
    """

    def _init_executor(self) -> None:
        parent = os.pidfd_open(os.getppid())
        threading.Thread(target=_end_with, args=(parent,), name="end-with-parent", daemon=True).start()
        super()._init_executor()


def _end_with(process: int) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    os._exit(1)
