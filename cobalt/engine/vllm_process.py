"""First steps of each of vLLM's processes: leave the terminal's process group, and end with the process that uses it.

vLLM finds `bind` among its plugins (pyproject.toml, `vllm.general_plugins`) in each of its processes, those of tensor
parallelism included. The engine's own process loads its plugins only when its parent has answered, for which it would
wait five minutes where the parent was killed; an `EarlyProcess` calls `bind` first.
"""

import contextlib
import multiprocessing
import os
import select
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Self

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


class EarlyProcess(SpawnProcess):
    """The process of an engine, which imports vLLM while the process that makes it does the same.

    It stands for the process that vLLM makes and starts: `for_work` takes what vLLM gives to its own.
    """

    def __init__(self) -> None:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        super().__init__(target=_run_engine, args=(receiver,), name="EngineCore")
        super().start()
        receiver.close()
        self._sender = sender

    def for_work(self, *, target: object, name: str, kwargs: dict[str, Any]) -> Self:
        """Take the arguments of vLLM's engine, and return this process."""
        self._work = kwargs
        return self

    def start(self) -> None:
        """Let the engine start."""
        with contextlib.suppress(BrokenPipeError):  # vLLM sees itself that the process has ended
            self._sender.send((dict(os.environ), self._work))


def _run_engine(receiver: Connection) -> None:
    bind()
    from vllm.v1.engine.core import EngineCoreProc

    environment, arguments = receiver.recv()
    # vLLM has set and removed variables by now. The others are left alone, or vLLM could not name this process.
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment.items() - os.environ.items())
    EngineCoreProc.run_engine_core(**arguments)


def end_with(process: int) -> None:
    """End this process as soon as another one, by its id, has ended; at once if it has already."""
    try:
        ended = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    poll = select.poll()
    poll.register(ended, select.POLLIN)

    def wait() -> None:
        poll.poll()
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()
