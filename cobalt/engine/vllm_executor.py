"""What vLLM runs in its engine's process when one process is all that an engine needs.

Imported in that process by vLLM itself, from the class that the service names.
"""

import os
import select
import threading

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class BoundExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM is not typed
    """vLLM's executor for one process, which ends with its parent.

    vLLM leaves the engine's process behind, with its gigabytes, when the replica that it belongs to is killed.
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
