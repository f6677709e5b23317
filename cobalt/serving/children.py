"""The judge's and the engine's app as child processes of this one, under uvicorn on 127.0.0.1: `running_servers`.

Each child (`cobalt.serving.host`) is in a process group of its own, so that Ctrl-C in a terminal reaches the command
that uses them first, and ends with this process even if that is killed. Their logs are in a folder of
`$XDG_CACHE_HOME/cobalt/logs` (by default `~/.cache/cobalt/logs`), of which the last few are kept.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.engine.startup import first_error
from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
from cobalt.judge.processes import shares
from cobalt.judge.sandbox.isolation import check_paths, find_bwrap
from cobalt.serving.engine_settings import EngineServiceSettings
from cobalt.serving.host import ROUTES
from cobalt.serving.judge_service_settings import ServiceSettings
from cobalt.stage.environment import new_log_folder
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.settings import read_settings

logger = logging.getLogger(__name__)

"""Number of folders of logs that are kept."""

_SECONDS_TO_END = 25.0
_MOST_LOG = 2**20  # bytes in which the first error is looked for
_URL = {"judge": "COBALT_JUDGE_URL", "engine": "COBALT_ENGINE_URL"}


@dataclass(frozen=True, slots=True)
class Server:
    """A child that serves an app.

    Attributes:
        name: "judge" or "engine".
        process: The child; its standard output has its answer.
        ended: A descriptor that is readable when the child has ended.
        log: Where its standard error goes.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    ended: int
    log: Path

    def url(self) -> str:
        """Read the child's answer, and return the app's URL.

        Raises:
            UserError: a setting is wrong, or the port is in use.
            InfrastructureError: the app did not start.
        """
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline() or b"{}")
        if "port" in answer:
            return f"http://127.0.0.1:{answer['port']}{ROUTES[self.name]}"
        if answer.get("mistake"):
            raise UserError(answer["error"])
        cause = answer.get("error") or self._first_error() or f"exit code {self.process.wait()}"
        raise InfrastructureError(f"the {self.name} did not start: {cause} (logs: {self.log.parent})")

    def end(self) -> str:
        """How the child has ended, as the beginning of a sentence."""
        return f"the {self.name} has ended ({self._first_error() or 'without an error'}; logs: {self.log.parent})"

    def _first_error(self) -> str:
        with self.log.open("rb") as file:
            return first_error(file.read(_MOST_LOG).decode(errors="replace"))


@contextlib.contextmanager
def running_servers(
    *, judge: Mapping[str, Any], engine: Mapping[str, Any] | None = None, http_port: int | None = None
) -> Iterator[dict[str, str]]:
    """The judge's app and, if settings of one are given, an engine's; both answer when the block begins.

    Args:
        judge: Settings of the judge (`cobalt.serving.judge_service_settings.ServiceSettings`).
        engine: Settings of the engine (`cobalt.serving.engine_settings.EngineServiceSettings`), with its `model`.
        http_port: Port of the engine on 127.0.0.1, and the judge has the next one; without an engine, port of the
            judge. A judge of more than eight sandboxes is several processes, which have the ports after it. None: free
            ports.

    Yields:
        `COBALT_JUDGE_URL`, with a URL for each process of the judge, and, with an engine, `COBALT_ENGINE_URL`.

    Raises:
        UserError: a port is in use, a setting or the model is wrong, or bubblewrap is not installed.
        InfrastructureError: an app did not start, or the Hub does not answer; the message has the folder of the logs.
    """
    with started_servers(judge=judge, engine=engine, http_port=http_port) as servers:
        yield variables(servers)


def variables(servers: Mapping[Server, str]) -> dict[str, str]:
    """The variables by which commands find servers, of which each has its URL."""
    urls: dict[str, str] = {}
    for server, url in servers.items():
        urls[_URL[server.name]] = f"{urls.get(_URL[server.name], '')} {url}".strip()
    return urls


@contextlib.contextmanager
def started_servers(
    *, judge: Mapping[str, Any], engine: Mapping[str, Any] | None = None, http_port: int | None = None
) -> Iterator[dict[Server, str]]:
    """As `running_servers`; yields each server with its URL."""
    of_judge, _ = check_settings(judge, engine)
    wanted = [] if engine is None else [("engine", engine)]
    wanted += [("judge", {**judge, "concurrency": share}) for share in shares(of_judge.sandboxes)]
    if http_port is not None and not 0 < http_port <= 65536 - len(wanted):
        raise UserError(
            f"http_port is {http_port}: give a port from 1 to {65536 - len(wanted)}; {len(wanted)} are used"
        )
    logger.info("starting the judge%s", " and the engine; this takes half a minute" if engine else "")
    folder = _log_folder()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                _child(name, settings, http_port + index if http_port else 0, folder / f"{name}{index}")
            )
            for index, (name, settings) in enumerate(wanted)
        ]
        urls = _urls(servers)
        for server, url in urls.items():
            logger.info("the %s answers at %s", server.name, url)
        yield urls


def check_settings(
    judge: Mapping[str, Any], engine: Mapping[str, Any] | None
) -> tuple[ServiceSettings, EngineServiceSettings | None]:
    """Check everything about the two apps that shows before they start; returns their settings.

    Raises:
        UserError: a setting is unknown or has a bad value or needs Ray Serve, the model is not there or has no chat
            template, or bubblewrap is not installed.
        InfrastructureError: the model is not on this machine, and the Hub does not answer.
    """
    from cobalt.engine.model_check import check_model

    of_judge = ServiceSettings.from_mapping(judge, os.environ)
    check_paths(of_judge)
    if not of_judge.unsafe:
        find_bwrap()
    _check_replicas(of_judge.num_replicas or 1, "remote_reward_server:app", "evaluator")
    if engine is None:
        return of_judge, None
    of_engine = read_settings(EngineServiceSettings, engine, os.environ, ENVIRONMENT_PREFIX)
    _check_replicas(of_engine.num_replicas, f"vllm_engine_actor:app model={of_engine.model}", "vllm_actor")
    check_model(of_engine.model)
    return of_judge, of_engine


def _check_replicas(replicas: int, app: str, name: str) -> None:
    if replicas > 1:
        raise UserError(
            f"num_replicas={replicas}: only Ray Serve has replicas; start a Ray cluster and `serve run {app}"
            f" num_replicas={replicas} --name {name} --route-prefix /{name}`"
        )


@contextlib.contextmanager
def _child(name: str, settings: Mapping[str, Any], port: int, path: Path) -> Iterator[Server]:
    log = path.with_suffix(".stderr")
    command = [sys.executable, "-m", "cobalt.serving.host", name, "--port", str(port)]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--log", str(path.with_suffix(".log"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    ended = os.pidfd_open(process.pid)
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and its log says why
            process.stdin.write(json.dumps(dict(settings)).encode() + b"\n")
            process.stdin.flush()
        yield Server(name, process, ended, log)
    finally:
        os.close(ended)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def _urls(servers: list[Server]) -> dict[Server, str]:
    """The URLs of servers that start at the same time; the first that cannot start ends the wait."""
    waiting = {server.process.stdout: server for server in servers if server.process.stdout is not None}
    urls = {}
    while waiting:
        for stream in select.select(list(waiting), [], [])[0]:
            server = waiting.pop(stream)
            urls[server] = server.url()
    return {server: urls[server] for server in servers}


def _log_folder() -> Path:
    try:
        return new_log_folder()
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be made ({error.strerror}): the logs of the services go there"
        ) from None
