"""A process that has imported what veRL's processes import, and that forks one of them at each request.

    python -m cobalt_verl.cpu.fork_server FOLDER PARENT

A training run on a CPU has eight processes that would each import the same packages for 6 to 12 s. Ray starts
`fork_client` in place of Python (`py_executable` of the runtime environment). That sends the command line, the
environment, the folder and the standard streams of a worker to this process, and the fork runs Ray's worker with them.
Not with GPUs, because CUDA does not survive a fork. The server ends by SIGTERM or with the process PARENT, and removes
the folder.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

EARLY = (
    "torch._dynamo",
    "torch._inductor.lowering",
    "tensordict",
    "transformers.modeling_utils",
    "accelerate",
    "peft",
    "datasets",
    "hydra",
    "vllm.entrypoints.openai.api_server",
)
"""Modules that are imported before the first request: most of what the processes need, and nothing that imports Ray."""

LATE = (
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "verl.experimental.reward_loop",
    "cobalt_verl.trainers.episodes",
    "cobalt_verl.trainers.sync",
    "cobalt_verl.cpu.shared_prompts",
)
"""Modules imported in the environment of the first request: Ray reads its job and its node from it at its import."""

SOCKET = "socket"
"""Name of the socket in the server's folder."""

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_STREAMS = 3
_REQUEST_SECONDS = 10.0


def serve(folder: Path, parent: int, early: Sequence[str] = EARLY, late: Sequence[str] = LATE) -> NoReturn:
    """Listen in a private folder at once, import `early`, then fork for every request.

    `late` is imported when the first request comes, in its environment; `parent` is the id of the parent process.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != parent:  # it had ended before
        signal.raise_signal(signal.SIGTERM)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / SOCKET))
        listener.listen(128)  # those that come during the imports wait here
        _import(early)
        while True:
            connection, _ = listener.accept()
            with connection:
                request, streams = _receive(connection)
                if request is not None:
                    if late:
                        _set_environment(request["environment"])
                        with _no_random_ids():
                            _import(late)
                        late = ()
                        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes forks that have ended
                    if os.fork() == 0:
                        listener.close()
                        connection.close()
                        _run(request, streams)
                    with contextlib.suppress(OSError):  # the client was killed meanwhile
                        connection.sendall(b"!")
                for stream in streams:
                    os.close(stream)


def _import(modules: Sequence[str]) -> None:
    gc.disable()  # the collector would look at all that stays, again and again
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # objects that it leaves alone stay shared with the forks
    gc.enable()


@contextlib.contextmanager
def _no_random_ids() -> Iterator[None]:
    """Keep Ray's generator of random ids, which names each class of actors that is defined, unused.

    Otherwise its state would be the same in all forks, and so would be the ids that they draw.
    """
    import ray.actor
    from ray import ActorClassID

    class OwnIds:
        from_random = staticmethod(lambda: ActorClassID(os.urandom(ActorClassID.size())))

    ray.actor.ActorClassID = OwnIds
    try:
        yield
    finally:
        ray.actor.ActorClassID = ActorClassID


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request, which the client ends by closing its side; None if it is not whole."""
    connection.settimeout(_REQUEST_SECONDS)
    streams: list[int] = []
    try:
        data, streams, _, _ = socket.recv_fds(connection, 2**16, _STREAMS)
        while more := connection.recv(2**16):
            data += more
        return json.loads(data), streams
    except (TimeoutError, ValueError):  # the client was stopped or killed
        return None, streams


def _run(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Become the process that `python ARGUMENTS` would be, except for the modules that are imported already."""
    import numpy as np

    # Ray ends the process group of each worker that has ended, so every worker needs its own.
    os.setpgid(0, 0)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    _set_environment(request["environment"])
    os.chdir(request["folder"])
    np.random.seed()  # else every fork would have the server's state
    script, *_ = sys.argv = request["arguments"]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
