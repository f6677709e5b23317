"""Start the judge and, if asked, a vLLM engine; run a command with these services; stop them all.

    python -m cobalt.services --model pocket/seed0/model -- python run_single_turn_vllm.py -i ... -o ...

The services are child processes of this one under uvicorn, on 127.0.0.1, and the command finds them by
`COBALT_JUDGE_URL` and `COBALT_ENGINE_URL`. Nothing of the services is left when the command ends, or when this process
is killed; the command then gets SIGTERM. What the services write on their standard error is in a folder of
`$XDG_CACHE_HOME/cobalt/logs` (by default `~/.cache/cobalt/logs`), of which the last few are kept; a file that has grown
is rotated.
"""

import contextlib
import ctypes
import logging
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
from cobalt.judge.processes import shares
from cobalt.judge.sandbox.cgroups import enter_delegated
from cobalt.serving.settings import EngineServiceSettings, ServiceSettings
from cobalt.stage.app_process import AppProcess
from cobalt.stage.cli import run_script, terminations_as_interrupts
from cobalt.stage.environment import new_log_folder
from cobalt.stage.errors import InfrastructureError, UserError, system_errors
from cobalt.stage.settings import pairs, read_settings

logger = logging.getLogger(__name__)

ROTATION_SECONDS = 10.0
"""Seconds after which the size of the services' standard error is looked at."""

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 25.0  # for a service
_SECONDS_TO_WRITE = 60.0  # for a command whose services have died, to write its finished results
_VARIABLES = {"judge": "COBALT_JUDGE_URL", "engine": "COBALT_ENGINE_URL"}

Servers = Mapping[AppProcess, str]
"""The children, each with the URL of its app."""


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

    def started(self) -> contextlib.AbstractContextManager[Servers]:
        """The services; see `started_servers`."""
        enter_delegated()  # before there are processes that would have to move too
        return started_servers(judge=pairs(self.judge), engine=self.engine_settings(), http_port=self.http_port)


@contextlib.contextmanager
def started_servers(
    *, judge: Mapping[str, Any], engine: Mapping[str, Any] | None = None, http_port: int | None = None
) -> Iterator[Servers]:
    """The judge's app and, if settings of one are given, an engine's; both answer when the block begins.

    Args:
        judge: Settings of the judge (`cobalt.serving.settings.ServiceSettings`).
        engine: Settings of the engine (`cobalt.serving.settings.EngineServiceSettings`), with its `model`.
        http_port: Port of the engine on 127.0.0.1, and the judge has the next one; without an engine, port of the
            judge. A judge of more than eight sandboxes is several processes, which have the ports after it. None: free
            ports.

    Raises:
        UserError: a port is in use, a setting or the model is wrong, or bubblewrap is not installed.
        InfrastructureError: an app did not start, or the Hub does not answer; the message has the folder of the logs.
    """
    wanted = [] if engine is None else [("engine", engine)]
    wanted += [("judge", {**judge, "concurrency": share}) for share in shares(_checked_sandboxes(judge, engine))]
    logger.info("starting the judge%s", " and the engine; this takes half a minute" if engine else "")
    with system_errors("cannot make the folder of the logs"):
        folder = new_log_folder()
    with ExitStack() as stack:
        servers = []
        for index, (name, settings) in enumerate(wanted):
            asked = {"settings": settings, "port": http_port + index if http_port else 0}
            errors = stack.enter_context((folder / f"{name}{index}.stderr").open("a+b"))
            servers.append(AppProcess(name, asked, errors))
            stack.callback(servers[-1].end, _SECONDS_TO_END)
        try:
            waited_for = sorted(servers, key=lambda server: server.name == "engine")  # which takes the longest
            urls = {server: server.url() for server in waited_for}
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} (logs: {folder})") from None
        for server, url in urls.items():
            logger.info("the %s answers at %s", server.name, url)
        yield urls


def ending(server: AppProcess) -> str:
    """Describe how a child has ended, as the beginning of a sentence."""
    logs = Path(server.errors.name).parent
    return f"the {server.name} has ended ({server.last_error() or 'without an error'}; logs: {logs})"


def variables(servers: Servers) -> dict[str, str]:
    """The variables by which commands find servers; a judge of several processes has a URL for each."""
    urls: dict[str, str] = {}
    for server, url in servers.items():
        urls[_VARIABLES[server.name]] = f"{urls.get(_VARIABLES[server.name], '')} {url}".strip()
    return urls


def _checked_sandboxes(judge: Mapping[str, Any], engine: Mapping[str, Any] | None) -> int:
    """Check everything about the two apps that shows before they start; returns the judge's number of sandboxes.

    Raises:
        UserError: a setting is unknown or has a bad value or needs Ray Serve, or the model is not there or has no chat
            template.
    """
    from cobalt.engine.model_check import check_model

    of_judge = ServiceSettings.read(judge)
    replicas = {("remote_reward_server:app", "evaluator"): of_judge.num_replicas or 1}
    if engine is not None:
        of_engine = read_settings(EngineServiceSettings, engine, os.environ, ENVIRONMENT_PREFIX)
        check_model(of_engine.model)
        replicas[f"vllm_engine_actor:app model={of_engine.model}", "vllm_actor"] = of_engine.num_replicas
    for (app, name), number in replicas.items():
        if number > 1:
            raise UserError(
                f"num_replicas={number}: only Ray Serve has replicas; start a Ray cluster and `serve run {app}"
                f" num_replicas={number} --name {name} --route-prefix /{name}`"
            )
    return of_judge.sandboxes


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
        with system_errors(f"cannot run {arguments.command[0]!r}"):  # such as a script without its first line
            # In a process group of its own, so that a stop also reaches the command's children, each of them once.
            child = subprocess.Popen(
                arguments.command,
                env=os.environ | variables(servers),
                process_group=0,
                preexec_fn=_terminated_with_parent,
            )
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
        if not select.select([ended], [], [], _SECONDS_TO_WRITE)[0]:
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
