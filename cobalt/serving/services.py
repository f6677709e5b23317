"""Start a private Ray with the judge and, if asked, a vLLM engine; run a command with these services; stop them all.

    python -m cobalt.services --model pocket/seed0/model -- python run_single_turn_vllm.py -i ... -o ...

The cluster belongs to this process. It listens on loopback and asks for Ray's token; another Ray on the machine is
neither used nor changed. Nothing is left when the command ends. If this process is killed, a watcher ends the command,
Ray and everything that they started, and removes their folder. The command finds the cluster by `RAY_ADDRESS`. For a
long-lived service use `serve run` on a Ray cluster of your own.

What needs no service (port, settings, model, bubblewrap) is checked before Ray is started. If the services do not
start, or Ray dies, Ray's logs are kept (`cobalt.serving.service_logs`).
"""

import atexit
import contextlib
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tenacity
import tyro

from cobalt.engine.model_check import check_model, model_path
from cobalt.engine.model_name import fingerprint
from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX, VllmSettings
from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.judge.sandbox.isolation import check_paths, find_bwrap
from cobalt.serving import cluster, serve_proxy, watcher
from cobalt.serving.judge_service_settings import ServiceSettings
from cobalt.serving.serve_client import reason
from cobalt.serving.service_logs import keeping_logs
from cobalt.stage.cli import run_script, terminations_as_interrupts
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

# Ray gives everybody write access to its own folder, so that lies inside one that other users cannot enter. The name is
# short, because Ray's socket names have a length limit.
_RAY = "r"
_NODE_PROCESSES = ("gcs_server", "raylet")
_SECONDS_TO_END = 60.0  # time for a command whose Ray has died to write its finished results


@dataclass(frozen=True)
class Arguments:
    """Run a command with a private Ray Serve that has the judge (app `evaluator`) and a vLLM engine (`vllm_actor`)."""

    command: Annotated[list[str], tyro.conf.Positional]
    """The command, after `--`."""
    model: str | None = None
    """Model folder or hub name for the engine; without it only the judge runs."""
    http_port: int | None = None
    """Port of both apps on 127.0.0.1 (/evaluator, /vllm_actor); a free port by default."""
    judge: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the judge, as key=value, such as comparison=float; may be given several times. The message about an
    unknown key lists all keys."""
    engine: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the engine, as key=value, such as max_model_len=4096; as for --judge."""


@contextlib.contextmanager
def running_services(
    *,
    model: str | None = None,
    judge: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    http_port: int | None = None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    object_store_memory: int = 256 * 2**20,
) -> Iterator[dict[str, str]]:
    """A private Ray with the judge and, if `model` is given, an engine; both answer when the block begins.

    Args:
        model: Model folder or hub name.
        judge: Settings of the judge (`cobalt.serving.judge_service_settings.ServiceSettings`).
        engine: Settings of the engine (`cobalt.engine.vllm_settings.VllmSettings`).
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
    _check_settings(model, judge or {}, engine or {})
    logger.info("starting the judge%s; this takes about a minute", " and the engine" if model else "")
    cluster.keep_token_private(create=True)
    with (
        _watched_folder() as folder,
        environment_variables(
            # Read when Serve is imported. Serve's default is five seconds for a proxy to start, which is too short on a
            # busy machine: the proxy is then killed and starts again.
            RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=os.environ.get("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"),
            # Unset, because Ray would join the cluster at this address even if its own argument is "local".
            RAY_ADDRESS=None,
            # Unset, so that a new cluster asks for its token, which is Ray's default.
            RAY_AUTH_MODE=None,
            **{watcher.VARIABLE: folder, serve_proxy.VARIABLE: serve_proxy.CALLBACK},
            # vLLM leaves sockets in this folder, which is removed at the end.
            VLLM_RPC_BASE_PATH=folder,
            **IMPORT_ENVIRONMENT,
        ),
    ):
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        handler = signal.getsignal(signal.SIGTERM)
        names: list[str] = []
        try:
            with keeping_logs(Path(folder, _RAY)):
                address = _start_ray(str(Path(folder, _RAY)), num_cpus, num_gpus, object_store_memory)
                _restore_sigterm(handler)
                names += _start_apps(port, model, judge or {}, engine or {})
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
            if ray.is_initialized() and _ray_lives(folder):
                # Not `serve.shutdown`, after which Ray logs that the controller was killed during its shutdown.
                with contextlib.suppress(Exception), ThreadPoolExecutor() as pool:
                    list(pool.map(serve.delete, names))
                ray.shutdown()


def _check_settings(model: str | None, judge: Mapping[str, Any], engine: Mapping[str, Any]) -> None:
    """Check everything about the two apps that shows without Ray.

    Raises:
        UserError: a setting is unknown or has a bad value, the model is not there or has no chat template, or
            bubblewrap is not installed.
        InfrastructureError: the model is not on this machine, and the Hub does not answer.
    """
    of_judge = ServiceSettings.from_mapping(judge, os.environ)
    check_paths(of_judge)
    if not of_judge.unsafe:
        find_bwrap()
    if model is not None:
        check_model(read_settings(VllmSettings, {"model": model} | dict(engine), os.environ, ENVIRONMENT_PREFIX).model)


def _start_apps(port: int, model: str | None, judge: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    """Start Serve and the apps on the Ray that this process has joined; returns the apps' names.

    Raises:
        InfrastructureError: Serve or an app did not start.
    """
    from ray import serve
    from ray.exceptions import RayError

    from cobalt.serving import judge_service, vllm_service

    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
    except (RayError, TimeoutError) as error:
        raise InfrastructureError(f"Ray Serve did not start: {reason(error)}") from None
    apps = [("evaluator", judge_service.build(judge))]
    if model is not None:
        apps.append(("vllm_actor", vllm_service.build({"model": model} | dict(engine))))
    names = [name for name, _ in apps]
    try:
        # All at once, so that the engine and the judge start at the same time.
        serve.run_many([serve.RunTarget(app, name, f"/{name}") for name, app in apps])
    except (RuntimeError, TimeoutError) as error:
        failed = [name for name in names if f"pplication {name} " in str(error)] or names
        raise InfrastructureError(
            f"app {' or '.join(map(repr, failed))} did not start: {_refusal(failed) or reason(error)}"
        ) from None
    return names


HOLD = (
    "import json, os, sys; names = [n for n in os.environ if n.startswith(('RAY_', 'COBALT_'))];"
    " print(json.dumps({n: os.environ[n] for n in names}), flush=True); sys.stdin.read()"
)
"""A program that prints the environment variables of the services and ends when its standard input is closed."""


@contextlib.contextmanager
def services_process(
    flags: Sequence[str],
    log: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[dict[str, str]]:
    """`python -m cobalt.services` in a process of its own, for as long as the block runs or this process lives.

    Unlike `running_services` it does not start Ray in this process.

    Args:
        flags: Flags of the command, such as `--model`.
        log: Descriptor of a file for the command's messages; None: standard error.
        environment: The command's environment; None: that of this process.
        cwd: The command's working folder; None: that of this process.

    Yields:
        Environment variables by which a child process finds the services.

    Raises:
        InfrastructureError: the services did not start; their messages say why.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "cobalt.services", *flags, "--", sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        cwd=cwd,
        text=True,
        process_group=0,  # so that Ctrl-C reaches the caller's commands first
    )
    assert process.stdin is not None
    assert process.stdout is not None
    line = ""
    try:
        line = process.stdout.readline()
        if not line:
            raise InfrastructureError(f"the services did not start (exit code {process.wait()})")
        variables: dict[str, str] = json.loads(line)
        yield variables
    finally:
        if not line:
            process.terminate()  # it may still be starting
        process.stdin.close()
        process.stdout.close()
        process.wait()


@contextlib.contextmanager
def _watched_folder() -> Iterator[str]:
    """A folder for Ray; in any case a watcher removes it, and ends all remaining processes that have its name."""
    # Interrupts wait until the watcher, which removes the folder, is running.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
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
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield folder
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def _start_ray(folder: str, num_cpus: int | None, num_gpus: int | None, object_store_memory: int) -> str:
    """Start a private Ray that keeps its files in `folder`, and join it; returns its address.

    Raises:
        InfrastructureError: Ray did not start at any attempt.
    """
    import ray

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
                    _temp_dir=folder,
                    _node_ip_address="127.0.0.1",
                )
    except Exception as error:  # Ray raises bare ones
        raise InfrastructureError(f"Ray did not start: {reason(error)}") from error
    address: str = context.address_info["gcs_address"]
    return address


def _node_processes(folder: str) -> dict[str, int]:
    """The essential processes, by name, of the Ray that keeps its files in `folder`."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if entry.name.isdigit() and folder.encode() in (command := (entry / "cmdline").read_bytes()):
                name = Path(os.fsdecode(command.split(b"\0")[0])).name
                if name in _NODE_PROCESSES:
                    found[name] = int(entry.name)
    return found


def _ray_lives(folder: str) -> bool:
    return set(_node_processes(folder)) == set(_NODE_PROCESSES)


@contextlib.contextmanager
def _ended_with_ray(child: "subprocess.Popen[bytes]", folder: str) -> Iterator[threading.Event]:
    """Interrupt a command when its Ray dies, which Ray itself reports only after minutes or never.

    Yields:
        An event that is set when Ray has died.
    """
    died = threading.Event()
    here, there = os.pipe()
    descriptors = []
    for pid in _node_processes(folder).values():
        with contextlib.suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(pid))

    def watch() -> None:
        ready, _, _ = select.select([here, *descriptors], [], [])
        if here in ready:
            return
        died.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGINT)
        if not select.select([here], [], [], _SECONDS_TO_END)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield died
    finally:
        os.close(there)
        thread.join()
        for descriptor in (here, *descriptors):
            os.close(descriptor)


def _refusal(apps: list[str]) -> str:
    """The last exception that replicas of these apps reported when they did not start; "" if there is none."""
    from ray import serve
    from ray.exceptions import RayError

    try:
        applications = serve.status().applications
    except RayError:  # Serve itself is down and has no further information
        return ""
    said = [
        line.strip()
        for name in apps
        if name in applications
        for deployment in applications[name].deployments.values()
        for line in deployment.message.splitlines()
    ]
    reasons = [line for line in said if re.match(r"(Value error, |[\w.]*(Error|Exception): )", line)]
    # The sentences of this project's own errors need no type before them.
    return re.sub(r"^cobalt\.[\w.]+: ", "", reasons[-1]) if reasons else ""


def _restore_sigterm(handler: Any) -> None:
    """Restore a handler: when Ray starts, it installs handlers of its own; the last one prints stacks and aborts."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def check(arguments: Arguments) -> None:
    """Check everything about the two apps that shows without Ray, as `running_services` does before it starts one.

    Raises:
        UserError: a setting is unknown or has a bad value, or the model is not there or has no chat template.
        InfrastructureError: the model is not on this machine, and the Hub does not answer.
    """
    _check_settings(arguments.model, pairs(arguments.judge), pairs(arguments.engine))


def known_descriptions(arguments: Arguments) -> dict[str, dict[str, Any]]:
    """What manifests say of both services (`engine`, `judge`), as far as it is known before they start.

    Raises:
        UserError: a setting is unknown or has a bad value.
    """
    known = {"judge": ServiceSettings.from_mapping(pairs(arguments.judge), os.environ).of_the_judge().decisive()}
    if arguments.model is not None:
        given = {"model": arguments.model} | pairs(arguments.engine)
        settings = read_settings(VllmSettings, given, os.environ, ENVIRONMENT_PREFIX)
        path = model_path(settings.model)
        known["engine"] = settings.model_dump(include={"dtype", "seed", "max_model_len"}, exclude_none=True)
        known["engine"]["model"] = settings.model
        if path is not None:
            known["engine"] |= {"model": path.resolve().name, "fingerprint": fingerprint(path.resolve())}
    return known


def run_beside_services(arguments: Arguments) -> int:
    """Run the command with the services; returns its exit code."""
    if not arguments.command:
        raise UserError("no command given: put it after `--`")
    if shutil.which(arguments.command[0]) is None:
        raise UserError(f"cannot run {arguments.command[0]!r}: there is no such command")
    if arguments.engine and arguments.model is None:
        raise UserError("--engine has settings of the engine, which is started only with --model: give both or neither")
    enter_delegated()  # before there are processes that would have to move too
    with (
        terminations_as_interrupts(),
        running_services(
            model=arguments.model,
            judge=pairs(arguments.judge),
            engine=pairs(arguments.engine),
            http_port=arguments.http_port,
        ) as environment,
    ):
        try:
            # In a process group of its own, so that a stop also reaches the command's children, each of them once.
            child = subprocess.Popen(arguments.command, env=os.environ | environment, process_group=0)
        except OSError as error:
            raise UserError(f"cannot run {arguments.command[0]!r}: {error.strerror}") from None
        with _ended_with_ray(child, environment[watcher.VARIABLE]) as ray_died:
            try:
                code = child.wait()
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGINT)
                code = child.wait()  # the command is writing its finished results
        if ray_died.is_set():
            with keeping_logs(Path(environment[watcher.VARIABLE], _RAY)):
                raise InfrastructureError(
                    "Ray died, and the command was interrupted: what is finished is kept; run the same command again"
                )
        return code if code >= 0 else 128 - code  # the exit code of a shell for a command ended by a signal


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


def pairs(settings: Sequence[str]) -> dict[str, Any]:
    """Settings of the form key=value by their keys.

    Raises:
        UserError: one has another form.
    """
    values = {}
    for item in settings:
        name, separator, value = item.partition("=")
        if not separator:
            raise UserError(f"setting {item!r} must have the form key=value")
        values[name] = value
    return values


if __name__ == "__main__":
    run_script(Arguments, run_beside_services)
