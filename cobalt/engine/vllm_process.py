"""What each of vLLM's processes does first: leave the terminal's process group, and end with the process that uses it.

vLLM finds `bind` among its plugins (pyproject.toml, `vllm.general_plugins`) in each of its processes, those of tensor
parallelism included. The engine's own process loads its plugins only when its parent has answered, for which it would
wait five minutes where the parent was killed; `run_engine_core` is earlier.
"""

import os
import select
import threading
from typing import Any

PARENT = "COBALT_ENGINE_PARENT"
"""The variable with the id of the process that uses the engine. Set only while an engine of `cobalt` starts."""


def bind() -> None:
    """Bind this process to the one that `PARENT` names; does nothing in that process itself, or without the variable.

    The process gets a group of its own, so that Ctrl-C in a terminal reaches the command alone, which then ends its
    engine. It also ends when the command is killed, by which the command could not end it.
    """
    parent = int(os.environ.get(PARENT, os.getpid()))
    if parent != os.getpid():
        os.setpgid(0, 0)
        end_with(parent)


def run_engine_core(*arguments: Any, **options: Any) -> None:
    """What the engine's process runs, in place of vLLM's own function of this name."""
    bind()
    from vllm.v1.engine.core import EngineCoreProc

    EngineCoreProc.run_engine_core(*arguments, **options)


def end_with(process: int) -> None:
    """End this process as soon as another one, by its id, has ended; at once if it has already."""
    try:
        ended = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_wait, args=(ended,), name="end-with-parent", daemon=True).start()


def _wait(ended: int) -> None:
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.poll()
    os._exit(1)
