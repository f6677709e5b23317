"""Start the judge and, if asked, a vLLM engine; run a command with these services; stop them all.

    python -m cobalt.services --model pocket/seed0/model -- python run_single_turn_vllm.py -i ... -o ...

The services are child processes of this one (`cobalt.serving.children`), and the command finds them by
`COBALT_JUDGE_URL` and `COBALT_ENGINE_URL`. Nothing of the services is left when the command ends, or when this process
is killed; the command then gets SIGTERM.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.serving.children import Servers, ending, started_servers, variables
from cobalt.stage.app_process import AppProcess
from cobalt.stage.cli import run_script, terminations_as_interrupts
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.settings import pairs

ROTATION_SECONDS = 10.0
"""Seconds after which the size of the services' standard error is looked at."""

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 60.0  # time for a command whose services have died to write its finished results


@dataclass(frozen=True, kw_only=True)
class ServiceFlags:
    """The services that a command starts, and their settings."""

    model: str | None = None
    """Model folder or hub name for the engine; without it only the judge runs."""
    http_port: int | None = None
    """Port of the engine on 127.0.0.1, and the judge has the next one; without an engine, port of the judge. Free ports
    by default."""
    judge: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the judge, as key=value, such as comparison=float; may be given several times. The message about an
    unknown key lists all keys."""
    engine: tyro.conf.UseAppendAction[list[str]] = field(default_factory=list)
    """A setting of the engine, as key=value, such as max_model_len=4096; as for --judge."""

    def engine_settings(self) -> dict[str, Any] | None:
        """The settings of the engine, with its model; None: there is no engine.

        Raises:
            UserError: there are settings of an engine, and no model.
        """
        if self.engine and self.model is None:
            raise UserError(
                "--engine has settings of the engine, which is started only with --model: give both or neither"
            )
        return None if self.model is None else {"model": self.model} | pairs(self.engine)

    @contextlib.contextmanager
    def started(self) -> Iterator[Servers]:
        """The services; see `started_servers`."""
        enter_delegated()  # before there are processes that would have to move too
        judge, engine = pairs(self.judge), self.engine_settings()
        with started_servers(judge=judge, engine=engine, http_port=self.http_port) as servers:
            yield servers


@dataclass(frozen=True)
class Arguments(ServiceFlags):
    """Run a command with the judge and, with --model, a vLLM engine."""

    command: Annotated[list[str], tyro.conf.Positional]
    """The command, after `--`."""


def run_beside_services(arguments: Arguments) -> int:
    """Run the command with the services; returns its exit code."""
    if not arguments.command:
        raise UserError("no command given: put it after `--`")
    if shutil.which(arguments.command[0]) is None:
        raise UserError(f"cannot run {arguments.command[0]!r}: there is no such command")
    with terminations_as_interrupts(), arguments.started() as servers:
        try:
            # In a process group of its own, so that a stop also reaches the command's children, each of them once.
            child = subprocess.Popen(
                arguments.command,
                env=os.environ | variables(servers),
                process_group=0,
                preexec_fn=_terminated_with_parent,
            )
        except OSError as error:  # such as a script without its first line
            raise UserError(f"cannot run {arguments.command[0]!r}: {error.strerror}") from None
        code = _wait(child, servers)
        return code if code >= 0 else 128 - code  # the exit code of a shell for a command ended by a signal


def _terminated_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends, also by kill -9."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(child: "subprocess.Popen[bytes]", servers: Servers) -> int:
    """Wait for a command, and interrupt it when this process is, or when one of its services dies."""
    ended = os.pidfd_open(child.pid)
    died: AppProcess | None = None
    try:
        died = first_to_end(servers, ended)
    except KeyboardInterrupt:
        _signal(child, signal.SIGINT)  # the command then writes its finished results
        died = first_to_end(servers, ended)
    if died is not None:
        _signal(child, signal.SIGINT)
        if not select.select([ended], [], [], _SECONDS_TO_END)[0]:
            _signal(child, signal.SIGKILL)
    code = child.wait()
    if died is not None:
        raise InfrastructureError(
            f"{ending(died)}, and the command was interrupted: what is finished is kept; run the same command again"
        )
    return code


def first_to_end(servers: Servers, ended: int | None = None) -> AppProcess | None:
    """Wait for the end of a service, which is returned, or of a process with the descriptor `ended`; rotate logs."""
    descriptors = {server.ended: server for server in servers}
    watched = [*([] if ended is None else [ended]), *descriptors]
    while not (ready := select.select(watched, [], [], ROTATION_SECONDS)[0]):
        for server in servers:
            server.rotate_errors()
    return descriptors.get(ready[0])


def _signal(child: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


if __name__ == "__main__":
    run_script(Arguments, run_beside_services)
