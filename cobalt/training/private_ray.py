"""The Ray of a training run on one machine: `private_ray`.

It listens on loopback and asks for Ray's token; another Ray on the machine is neither used nor changed. A watcher
(`ray_watcher`) removes its folder and ends what is left, also if this process is killed. If Ray does not start or dies,
its logs are kept in `~/.cache/cobalt/logs` (`XDG_CACHE_HOME`).
"""

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import tenacity

from cobalt.stage.environment import environment_variables, new_log_folder
from cobalt.stage.errors import InfrastructureError, last_line
from cobalt.training import ray_watcher
from cobalt.training.cluster import LOOPBACK_VARIABLE, keep_token_private

IMPORT_ENVIRONMENT: Mapping[str, str | None] = {
    LOOPBACK_VARIABLE: "0",
    # A dozen processes import the same packages. Without cached bytecode, which some container images turn off, a
    # training run starts 90 s later.
    "PYTHONDONTWRITEBYTECODE": None,
}
"""Variables (None: unset) of this process and of those of Ray that must be set before they import Ray."""

_OWN = "r"  # Ray's own folder, in which everybody may write, inside one that others cannot enter


@contextlib.contextmanager
def private_ray(*, num_cpus: int, num_gpus: int | None, object_store_memory: int) -> Iterator[dict[str, str]]:
    """A private Ray that has started when the block begins.

    Args:
        num_cpus: CPUs that Ray counts. It binds nothing to a core.
        num_gpus: GPUs that Ray counts; None: those that it finds. Training on a CPU needs logical ones.
        object_store_memory: Bytes of shared memory.

    Yields:
        `RAY_ADDRESS` for child processes, which also need the environment that this process has in the block.

    Raises:
        UserError: Ray's token file cannot be kept private.
        InfrastructureError: Ray did not start, or has died in the block; the message has the folder of its logs.
    """
    keep_token_private(create=True)
    with _watched_folder() as folder:
        variables: dict[str, str | None] = {
            "RAY_ADDRESS": None,  # Ray would join this cluster even if its own argument is "local"
            "RAY_AUTH_MODE": "token",
            ray_watcher.VARIABLE: folder,
            "VLLM_RPC_BASE_PATH": folder,  # vLLM leaves sockets there
            **IMPORT_ENVIRONMENT,
        }
        with environment_variables(**variables):
            import ray

            try:
                yield {"RAY_ADDRESS": _start(folder, num_cpus, num_gpus, object_store_memory)}
                if not _alive():
                    raise InfrastructureError(f"Ray died: run the same command to go on{_log_folder(folder)}")
            finally:
                # If parts of Ray have died, an orderly shutdown would wait for them; the watcher ends what is left.
                if _alive():
                    ray.shutdown()


@contextlib.contextmanager
def _watched_folder() -> Iterator[str]:
    """A folder for Ray; in any case a watcher removes it, and ends all remaining processes that have its name."""
    # /tmp, not the user's TMPDIR, because Ray's socket names have a length limit.
    folder = tempfile.mkdtemp(prefix="cobalt-ray-", dir="/tmp")
    # If Ray has died, its own handlers write into the folder after the watcher. Handlers run in the opposite order.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    guard = subprocess.Popen(
        [sys.executable, "-I", ray_watcher.__file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        guard.communicate()


def _start(folder: str, num_cpus: int, num_gpus: int | None, object_store_memory: int) -> str:
    """Start Ray and join it; returns its address."""
    import ray

    handler = signal.getsignal(signal.SIGTERM)  # Ray's own prints stacks and aborts
    # Ray itself gives a node 30 s to start, which is too short on a busy machine.
    attempts = tenacity.Retrying(stop=tenacity.stop_after_attempt(3), after=lambda _: ray.shutdown(), reraise=True)
    try:
        context = attempts(
            ray.init,
            address="local",
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            include_dashboard=False,
            object_store_memory=object_store_memory,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=str(Path(folder, _OWN)),
            _node_ip_address="127.0.0.1",
        )
    except Exception as error:  # Ray raises bare ones
        cause = last_line(str(error)) or type(error).__name__
        raise InfrastructureError(f"Ray did not start: {cause}{_log_folder(folder)}") from error
    signal.signal(signal.SIGTERM, handler)
    address: str = context.address_info["gcs_address"]
    return address


def _alive() -> bool:
    """Whether Ray's essential processes, which are children of this one, live."""
    every = [process.info for process in psutil.process_iter(["ppid", "name", "status"])]
    living = {own["name"] for own in every if own["ppid"] == os.getpid() and own["status"] != psutil.STATUS_ZOMBIE}
    return {"gcs_server", "raylet"} <= living


def _log_folder(folder: str) -> str:
    """Copy the logs of Ray's session; returns the end of a sentence that names them, "" if there are none."""
    try:
        *_, logs = sorted(Path(folder, _OWN).glob("session_2*/logs"))
        target = shutil.copytree(logs, new_log_folder(), dirs_exist_ok=True)
    except (OSError, ValueError):  # Ray has none, or they cannot be copied
        return ""
    return f" (logs: {target})"
