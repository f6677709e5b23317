"""Start a private Ray with the judge and, if asked, a vLLM engine; run a command with these services; stop them all.

    python -m cobalt.services --model pocket/seed0/model -- python run_single_turn_vllm.py -i ... -o ...

The cluster (`cobalt.serving.private_ray`) belongs to this process. Nothing is left when the command ends. If this
process is killed, a watcher ends the command, Ray and everything that they started. The command finds the cluster by
`RAY_ADDRESS`. For a long-lived service use `serve run` on a Ray cluster of your own.

What needs no service (port, settings, model, bubblewrap) is checked before Ray is started.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.engine.model_check import model_path
from cobalt.engine.model_name import fingerprint
from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.serving import watcher
from cobalt.serving.private_ray import check_settings, node_processes, ray_folder, running_services
from cobalt.serving.service_logs import keeping_logs
from cobalt.stage.cli import run_script, terminations_as_interrupts
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.settings import pairs

_SECONDS_TO_END = 60.0  # time for a command whose Ray has died to write its finished results


@dataclass(frozen=True, kw_only=True)
class ServiceFlags:
    """The services that a command starts, and their settings."""

    model: str | None = None
    """Model folder or hub name for the engine; without it only the judge runs."""
    http_port: int | None = None
    """Port of both apps on 127.0.0.1 (/evaluator, /vllm_actor); a free port by default."""
    judge: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the judge, as key=value, such as comparison=float; may be given several times. The message about an
    unknown key lists all keys."""
    engine: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the engine, as key=value, such as max_model_len=4096; as for --judge."""

    def engine_settings(self) -> dict[str, Any] | None:
        """The settings of the engine, with its model; None: there is no engine."""
        return None if self.model is None else {"model": self.model} | pairs(self.engine)


@dataclass(frozen=True)
class Arguments(ServiceFlags):
    """Run a command with a private Ray Serve that has the judge (app `evaluator`) and a vLLM engine (`vllm_actor`)."""

    command: Annotated[list[str], tyro.conf.Positional]
    """The command, after `--`."""


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
            judge=pairs(arguments.judge), engine=arguments.engine_settings(), http_port=arguments.http_port
        ) as environment,
    ):
        try:
            # In a process group of its own, so that a stop also reaches the command's children, each of them once.
            child = subprocess.Popen(arguments.command, env=os.environ | environment, process_group=0)
        except OSError as error:  # such as a script without its first line
            raise UserError(f"cannot run {arguments.command[0]!r}: {error.strerror}") from None
        code = _wait(child, environment[watcher.VARIABLE])
        return code if code >= 0 else 128 - code  # the exit code of a shell for a command ended by a signal


def _wait(child: "subprocess.Popen[bytes]", folder: str) -> int:
    """Wait for a command, and interrupt it when this process is, or when its Ray dies.

    Ray itself reports its end to the command only after minutes or never. InfrastructureError says that it has died.
    """
    ended = os.pidfd_open(child.pid)
    either = [ended]
    for pid in node_processes(folder).values():
        with contextlib.suppress(ProcessLookupError):
            either.append(os.pidfd_open(pid))
    try:
        ray_died = ended not in select.select(either, [], [])[0]
    except KeyboardInterrupt:
        _signal(child, signal.SIGINT)  # the command then writes its finished results
        ray_died = ended not in select.select(either, [], [])[0]
    if ray_died:
        _signal(child, signal.SIGINT)
        if not select.select([ended], [], [], _SECONDS_TO_END)[0]:
            _signal(child, signal.SIGKILL)
    code = child.wait()
    if ray_died:
        with keeping_logs(ray_folder(folder)):
            raise InfrastructureError(
                "Ray died, and the command was interrupted: what is finished is kept; run the same command again"
            )
    return code


def _signal(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


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


def check(arguments: Arguments) -> dict[str, dict[str, Any]]:
    """Check what shows without Ray; returns what manifests say of both services (`engine`, `judge`), as far as known.

    Raises:
        UserError: a setting is unknown or has a bad value, or the model is not there or has no chat template.
        InfrastructureError: the model is not on this machine, and the Hub does not answer.
    """
    judge, engine = check_settings(pairs(arguments.judge), arguments.engine_settings())
    known = {"judge": judge.of_the_judge().decisive()}
    if engine is not None:
        path = model_path(engine.model)
        known["engine"] = engine.model_dump(include={"model", "dtype", "seed", "max_model_len"}, exclude_none=True)
        if path is not None:
            known["engine"] |= {"model": path.resolve().name, "fingerprint": fingerprint(path.resolve())}
    return known


if __name__ == "__main__":
    run_script(Arguments, run_beside_services)
