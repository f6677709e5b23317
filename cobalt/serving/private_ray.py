"""A private Ray in this process, with the judge and, if asked, a vLLM engine: `running_services`.

The cluster listens on loopback and asks for Ray's token; another Ray on the machine is neither used nor changed. A
watcher (`cobalt.serving.watcher`) removes the cluster's folder and ends what is left, also if this process is killed.
If the services do not start, Ray's logs are kept (`cobalt.serving.service_logs`). Ray is imported inside the functions.
"""

import atexit
import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tenacity

from cobalt.engine.model_check import check_model
from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
from cobalt.judge.sandbox.isolation import check_paths, find_bwrap
from cobalt.serving import cluster, serve_proxy, watcher
from cobalt.serving.engine_settings import EngineServiceSettings
from cobalt.serving.judge_service_settings import ServiceSettings
from cobalt.serving.serve_client import reason
from cobalt.serving.service_logs import keeping_logs
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.settings import read_settings

logger = logging.getLogger(__name__)

IMPORT_ENVIRONMENT: Mapping[str, str | None] = {
    # Read when Ray is imported, in all of its processes. Without it Ray uses the machine's public address instead of
    # 127.0.0.1, and listens on every interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A dozen processes import the same packages. Without cached bytecode, which some container images turn off, a
    # training run starts 90 s later.
    "PYTHONDONTWRITEBYTECODE": None,
}
"""Variables (None: unset) of this process and of those of Ray that must be set before they import Ray."""

_NODE_PROCESSES = ("gcs_server", "raylet")


@contextlib.contextmanager
def running_services(
    *,
    judge: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    http_port: int | None = None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    object_store_memory: int = 256 * 2**20,
) -> Iterator[dict[str, str]]:
    """A private Ray with the judge and, if settings of one are given, an engine; both answer when the block begins.

    Args:
        judge: Settings of the judge (`cobalt.serving.judge_service_settings.ServiceSettings`).
        engine: Settings of the engine (`EngineServiceSettings`), with its `model`; None: no engine.
        http_port: Port on 127.0.0.1; None: a free port.
        num_cpus: Number of CPUs that Ray can reserve; None: the machine's, at least 2. Ray binds nothing to a core.
        num_gpus: Number of GPUs that Ray can reserve; None: those that it finds. Training on a CPU needs logical GPUs.
        object_store_memory: Bytes of shared memory for Ray's object store.

    Yields:
        Environment variables by which a child process finds the services: `RAY_ADDRESS`, Ray's authentication, and
        `COBALT_HTTP` with the address for HTTP requests.

    Raises:
        UserError: the port is in use, a setting or the model is wrong, or bubblewrap is not installed.
        InfrastructureError: Ray or an app did not start, or the Hub does not answer; the message has the folder of the
            logs, if there are any.
    """
    port = _free_port(http_port)
    check_settings(judge or {}, engine)
    logger.info("starting the judge%s; this takes about a minute", " and the engine" if engine else "")
    cluster.keep_token_private(create=True)
    with _watched_folder() as folder, environment_variables(**_variables(folder)):
        import ray

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        names: list[str] = []
        try:
            with keeping_logs(ray_folder(folder)):
                address = _start_ray(folder, num_cpus, num_gpus, object_store_memory)
                names += _start_apps(port, judge or {}, engine)
            for name in names:
                logger.info("app %r answers at http://127.0.0.1:%d/%s", name, port, name)
            yield {
                "RAY_ADDRESS": address,
                "COBALT_HTTP": f"http://127.0.0.1:{port}",
                watcher.VARIABLE: folder,
                # Ray asks for a token from every process that joins a cluster started by a driver.
                **{name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")},
            }
        finally:
            # If parts of Ray have died, an orderly shutdown would wait for them; the watcher then ends what is left.
            if ray.is_initialized() and set(node_processes(folder)) == set(_NODE_PROCESSES):
                _stop(names)


def ray_folder(folder: str) -> Path:
    """The folder in which Ray keeps its files, inside the one that `watcher.VARIABLE` names.

    Ray gives everybody write access to its own folder, so that lies inside one that other users cannot enter. The name
    is short, because Ray's socket names have a length limit.
    """
    return Path(folder, "r")


def check_settings(
    judge: Mapping[str, Any], engine: Mapping[str, Any] | None
) -> tuple[ServiceSettings, EngineServiceSettings | None]:
    """Check everything about the two apps that shows without Ray; returns their settings.

    Raises:
        UserError: a setting is unknown or has a bad value, the model is not there or has no chat template, or
            bubblewrap is not installed.
        InfrastructureError: the model is not on this machine, and the Hub does not answer.
    """
    of_judge = ServiceSettings.from_mapping(judge, os.environ)
    check_paths(of_judge)
    if not of_judge.unsafe:
        find_bwrap()
    if engine is None:
        return of_judge, None
    of_engine = read_settings(EngineServiceSettings, engine, os.environ, ENVIRONMENT_PREFIX)
    check_model(of_engine.model)
    return of_judge, of_engine


def _variables(folder: str) -> dict[str, str | None]:
    """Environment variables (None: unset) that Ray, Serve and vLLM read when they are imported or started."""
    return {
        # Serve's default is five seconds for a proxy to start, which is too short on a busy machine: the proxy is then
        # killed and starts again.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": os.environ.get("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"),
        # Ray would join the cluster at this address even if its own argument is "local".
        "RAY_ADDRESS": None,
        # A new cluster asks for its token by default.
        "RAY_AUTH_MODE": None,
        watcher.VARIABLE: folder,
        serve_proxy.VARIABLE: serve_proxy.CALLBACK,
        # vLLM leaves sockets in this folder, which is removed at the end.
        "VLLM_RPC_BASE_PATH": folder,
        **IMPORT_ENVIRONMENT,
    }


@contextlib.contextmanager
def _watched_folder() -> Iterator[str]:
    """A folder for Ray; in any case a watcher removes it, and ends all remaining processes that have its name."""
    # Ray's socket names have a length limit, so the folder's path must be short: /tmp, not the user's TMPDIR.
    folder = tempfile.mkdtemp(prefix="cobalt-ray-", dir="/tmp")
    # If Ray has died, the handlers that it has registered write into the folder after the watcher has removed it.
    # Handlers run in the opposite order, and so this one after Ray's.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", watcher.__file__, folder],
        # Services may be started inside other services, whose watcher must not end this one.
        env={name: value for name, value in os.environ.items() if name != watcher.VARIABLE},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _start_ray(folder: str, num_cpus: int | None, num_gpus: int | None, object_store_memory: int) -> str:
    """Start a private Ray and join it; returns its address."""
    import ray

    # Ray installs handlers of its own; that of SIGTERM prints stacks and aborts.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        # Ray itself gives a node 30 s to start, which is too short on a busy machine.
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_attempt(3), after=lambda _: ray.shutdown(), reraise=True
        ):
            with attempt:
                context = ray.init(
                    address="local",
                    num_cpus=num_cpus or max(2, os.cpu_count() or 1),
                    num_gpus=num_gpus,
                    include_dashboard=False,
                    object_store_memory=object_store_memory,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _temp_dir=str(ray_folder(folder)),
                    _node_ip_address="127.0.0.1",
                )
    except Exception as error:  # Ray raises bare ones
        raise InfrastructureError(f"Ray did not start: {reason(error)}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    address: str = context.address_info["gcs_address"]
    return address


def _start_apps(port: int, judge: Mapping[str, Any], engine: Mapping[str, Any] | None) -> list[str]:
    """Start Serve and the apps on the Ray that this process has joined; returns the apps' names."""
    from ray import serve
    from ray.exceptions import RayError

    from cobalt.serving import judge_service, vllm_service

    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
    except (RayError, TimeoutError) as error:
        raise InfrastructureError(f"Ray Serve did not start: {reason(error)}") from None
    apps = {"evaluator": judge_service.build(judge)}
    if engine is not None:
        apps["vllm_actor"] = vllm_service.build(engine)
    try:
        # All at once, so that the engine and the judge start at the same time.
        serve.run_many([serve.RunTarget(app, name, f"/{name}") for name, app in apps.items()])
    except (RuntimeError, TimeoutError) as error:
        failed = [name for name in apps if f"pplication {name} " in str(error)] or list(apps)
        raise InfrastructureError(
            f"app {' or '.join(map(repr, failed))} did not start: {_refusal(failed) or reason(error)}"
        ) from None
    return list(apps)


def _refusal(apps: list[str]) -> str:
    """The last exception that replicas of these apps reported when they did not start; "" if there is none."""
    from ray import serve
    from ray.exceptions import RayError

    try:
        applications = serve.status().applications
    except RayError:  # Serve itself is down and has no further information
        return ""
    lines = [
        line.strip()
        for name in apps
        if name in applications
        for deployment in applications[name].deployments.values()
        for line in deployment.message.splitlines()
    ]
    reasons = [line for line in lines if re.match(r"(Value error, |[\w.]*(Error|Exception): )", line)]
    # The sentences of this project's own errors need no type before them.
    return re.sub(r"^cobalt\.stage\.errors\.\w+: ", "", reasons[-1]) if reasons else ""


def _stop(apps: list[str]) -> None:
    import ray
    from ray import serve

    # Not `serve.shutdown`, after which Ray logs that the controller was killed during its shutdown.
    with contextlib.suppress(Exception), ThreadPoolExecutor() as pool:
        list(pool.map(serve.delete, apps))
    ray.shutdown()


def node_processes(folder: str) -> dict[str, int]:
    """The essential processes, by name, of the Ray whose folder `watcher.VARIABLE` names."""
    pids = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if entry.name.isdigit() and folder.encode() in (command := (entry / "cmdline").read_bytes()):
                name = Path(os.fsdecode(command.split(b"\0")[0])).name
                if name in _NODE_PROCESSES:
                    pids[name] = int(entry.name)
    return pids


def _free_port(wanted: int | None) -> int:
    if wanted is not None and not 0 < wanted < 65536:
        raise UserError(f"http_port is {wanted}: give a port between 1 and 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError:
            raise UserError(
                f"port {wanted} is in use: stop the program that listens there, or give another port (http_port)"
            ) from None
        port: int = probe.getsockname()[1]
        return port
