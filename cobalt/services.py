"""Start a private Ray with the judge and, if asked, a vLLM engine, run a command against it, and stop it all.

    python -m cobalt.services --model pocket/seed0/model -- python run_single_turn_vllm.py -i ... -o ...

The cluster belongs to this process: it listens on loopback, another Ray on the machine is neither used nor touched,
and nothing is left when the command ends, however it ends. The command finds the cluster by `RAY_ADDRESS`. For a
long-lived service use `serve run` on a Ray of your own.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Annotated, Any

import tyro

from cobalt.cli import run_script
from cobalt.errors import InfrastructureError, UserError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    """Run a command beside a private Ray Serve with the judge (app `evaluator`) and a vLLM engine (`vllm_actor`)."""

    command: Annotated[list[str], tyro.conf.Positional]
    """The command, after `--`."""
    model: str | None = None
    """Model folder or hub name for the engine; without it only the judge runs."""
    http_port: int | None = None
    """Port of both apps on 127.0.0.1 (/evaluator, /vllm_actor); a free one by default."""
    judge: list[str] = field(default_factory=list)
    """Settings of the judge, as key=value."""
    engine: list[str] = field(default_factory=list)
    """Settings of the engine, as key=value."""


@contextlib.contextmanager
def running_services(
    *,
    model: str | None = None,
    judge: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    http_port: int | None = None,
) -> Iterator[dict[str, str]]:
    """A private Ray with the judge and, when `model` is given, an engine; both answer when the block begins.

    Args:
        model: Model folder or hub name.
        judge: Settings of the judge (`cobalt.judge.service.ServiceSettings`).
        engine: Settings of the engine (`cobalt.engine.vllm_service.VllmSettings`).
        http_port: Port on 127.0.0.1; None: a free one.

    Yields:
        Environment variables that lead a child process to the services: `RAY_ADDRESS`, what Ray needs to let it
        in, and `COBALT_HTTP` for the address of the HTTP side.

    Raises:
        UserError: the port is in use, or a setting is wrong.
        InfrastructureError: Ray or an app did not come up.
    """
    import ray
    from ray import serve

    from cobalt.engine import vllm_service
    from cobalt.judge import service as judge_service

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    port = _free_port(http_port)
    # Keeps a RAY_ADDRESS of the user's from being joined; Ray reads it even when told "local".
    outer = os.environ.pop("RAY_ADDRESS", None)
    # Ray's socket names have a length limit: a short folder, not the user's TMPDIR.
    with tempfile.TemporaryDirectory(prefix="cobalt-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            context = ray.init(
                address="local",
                num_cpus=max(2, os.cpu_count() or 1),
                include_dashboard=False,
                object_store_memory=256 * 2**20,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=folder,
                _node_ip_address="127.0.0.1",
            )
            serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
            apps = [("evaluator", judge_service.build(judge or {}))]
            if model is not None:
                apps.append(("vllm_actor", vllm_service.build({"model": model} | (engine or {}))))
            for name, app in apps:
                try:
                    serve.run(app, name=name, route_prefix=f"/{name}")
                except (RuntimeError, TimeoutError) as error:
                    raise InfrastructureError(f"app {name!r} did not start: {_reason(error)}") from None
                logger.info("app %r answers at http://127.0.0.1:%d/%s", name, port, name)
            yield {
                "RAY_ADDRESS": context.address_info["gcs_address"],
                "COBALT_HTTP": f"http://127.0.0.1:{port}",
                # Ray demands a token of whoever joins a cluster that a driver started.
                **{name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")},
            }
        finally:
            if ray.is_initialized():
                with contextlib.suppress(Exception):
                    serve.shutdown()
                ray.shutdown()
            if outer is not None:
                os.environ["RAY_ADDRESS"] = outer


def run_beside_services(arguments: Arguments) -> int:
    """Run the command beside the services; returns its exit code."""
    if not arguments.command:
        raise UserError("no command given: put it after `--`")
    with (
        _terminations_as_interrupts(),
        running_services(
            model=arguments.model,
            judge=_pairs(arguments.judge),
            engine=_pairs(arguments.engine),
            http_port=arguments.http_port,
        ) as environment,
    ):
        try:
            # In a process group of its own: a stop reaches the command's children too, and each of them once.
            child = subprocess.Popen(arguments.command, env=os.environ | environment, process_group=0)
        except OSError as error:
            raise UserError(f"cannot run {arguments.command[0]!r}: {error.strerror}") from None
        try:
            return child.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGINT)
            return child.wait()  # it is writing down what is finished


@contextlib.contextmanager
def _terminations_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that a stop from outside cleans up too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _free_port(wanted: int | None) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError:
            raise UserError(
                f"port {wanted} is in use: stop what listens there, or give another one (http_port)"
            ) from None
        port: int = probe.getsockname()[1]
        return port


def _pairs(settings: list[str]) -> dict[str, Any]:
    pairs = {}
    for item in settings:
        name, separator, value = item.partition("=")
        if not separator:
            raise UserError(f"setting {item!r} must have the form key=value")
        pairs[name] = value
    return pairs


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    run_script(Arguments, run_beside_services)
