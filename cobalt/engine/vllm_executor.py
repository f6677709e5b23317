"""The executor that vLLM runs in the engine's process if an engine needs only one process.

vLLM itself imports this module in that process, by the class that the service names.
"""

import os

from vllm.v1.executor.uniproc_executor import UniProcExecutor

from cobalt.engine.vllm_process import end_with


class BoundExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM is not typed
    """vLLM's executor for one process, which ends with its parent.

    Without it, the engine's process stays, with gigabytes of memory, when the replica that it belongs to is killed.
    """

    def _init_executor(self) -> None:
        end_with(os.getppid())
        super()._init_executor()
