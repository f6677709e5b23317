"""The judge's and the engine's app as child processes of this one, under uvicorn on 127.0.0.1: `started_servers`.

Their logs are in a folder of `$XDG_CACHE_HOME/cobalt/logs` (by default `~/.cache/cobalt/logs`), of which the last few
are kept; a log that has grown is rotated.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
from cobalt.judge.processes import shares
from cobalt.serving.host import ROUTES
from cobalt.serving.settings import EngineServiceSettings, ServiceSettings
from cobalt.stage.app_process import AppProcess
from cobalt.stage.environment import new_log_folder
from cobalt.stage.errors import InfrastructureError, UserError, system_errors
from cobalt.stage.settings import read_settings

logger = logging.getLogger(__name__)

_SECONDS_TO_END = 25.0
_URL = {"judge": "COBALT_JUDGE_URL", "engine": "COBALT_ENGINE_URL"}

Servers = Mapping[AppProcess, str]
"""The children, each with the URL of its app."""


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
            servers.append(AppProcess(name, asked | {"log": str(folder / f"{name}{index}.log")}, errors))
            stack.callback(servers[-1].end, _SECONDS_TO_END)
        try:
            ports = {server: server.port() for server in reversed(servers)}  # the engine takes the longest
        except InfrastructureError as error:
            raise InfrastructureError(f"{error} (logs: {folder})") from None
        urls = {server: f"http://127.0.0.1:{ports[server]}{ROUTES[server.name]}" for server in servers}
        for server, url in urls.items():
            logger.info("the %s answers at %s", server.name, url)
        yield urls


def ending(server: AppProcess) -> str:
    """How a child has ended, as the beginning of a sentence."""
    logs = Path(server.errors.name).parent
    return f"the {server.name} has ended ({server.last_error() or 'without an error'}; logs: {logs})"


def variables(servers: Servers) -> dict[str, str]:
    """The variables by which commands find servers; a judge of several processes has a URL for each."""
    urls: dict[str, str] = {}
    for server, url in servers.items():
        urls[_URL[server.name]] = f"{urls.get(_URL[server.name], '')} {url}".strip()
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
