"""The two apps on Ray Serve: `serve run remote_reward_server:app` and `serve run vllm_engine_actor:app`.

Serve gives them replicas on several nodes, and replaces those that die. A replica starts only on a cluster that asks
for Ray's token, unless `allow_open_cluster` is set. The app `evaluator` also answers over its deployment handle
(`judge`, `describe`), which training runs on a cluster use.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.schema import LoggingConfig

from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX, with_checked_model
from cobalt.judge.sandbox.isolation import check_paths, find_bwrap
from cobalt.judge.settings import usable_cores
from cobalt.serving import nodes
from cobalt.serving.engine_app import EngineService, engine_api
from cobalt.serving.judge_app import JudgeService, judge_api
from cobalt.serving.settings import EngineServiceSettings, ServiceSettings
from cobalt.stage.environment import passed_on
from cobalt.stage.errors import InfrastructureError, UserError, last_line
from cobalt.stage.settings import read_settings
from cobalt.training import cluster

_SERVE_PORT = 8000  # where `serve run` listens


def for_serve_run(builder: Callable[[Mapping[str, Any]], serve.Application], arguments: Mapping[str, Any]) -> Any:
    """Call an app's builder for `serve run`; errors print one sentence and exit with the same codes as in commands."""
    try:
        application = builder(arguments)
        _check_port()
    except (UserError, InfrastructureError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2 if isinstance(error, UserError) else 1) from None
    return application


def require_private(*, allow_open: bool) -> bool:
    """Whether the cluster that this process has joined refuses calls without its token.

    Raises:
        UserError: it does not, and `allow_open` is false: anybody can join it.
        ServiceDown: the cluster does not answer.
    """
    address = ray.get_runtime_context().gcs_address
    private = cluster.asks_for_token(address)
    if not private and not allow_open:
        raise UserError(
            f"the Ray cluster {address} asks nobody for a token, so that whoever reaches it can run code as you: stop"
            f" it and start one with `{cluster.START_COMMAND}`, or set allow_open_cluster=true, which every result then"
            " records"
        )
    return private


async def _opened(service: JudgeService | EngineService, api: FastAPI) -> FastAPI:
    """The app of a service that is open already: Serve reports errors of a replica's constructor alone."""
    logger = logging.getLogger("cobalt")  # whose messages go to the replica's log file
    logger.setLevel(logging.WARNING)
    for handler in logging.getLogger("ray.serve").handlers:
        logger.addHandler(handler)
    service.private = await asyncio.to_thread(require_private, allow_open=service.settings.allow_open_cluster)
    await service.open()

    @asynccontextmanager
    async def closing(_: Any) -> AsyncIterator[None]:
        yield
        await service.close()

    api.router.lifespan_context = closing
    return api


class Judge(JudgeService):
    """One replica of the judge, with a pool of sandboxes. Callers of the handle call its methods by name.

    Args:
        settings: Of the service.
        per_node: The most replicas on one node, which share its cores.
    """

    async def __init__(self, settings: ServiceSettings, per_node: int) -> None:  # type: ignore[misc]  # Serve awaits it
        if settings.concurrency is None:
            here = nodes.sandboxes(nodes.this_node(), cores_here=usable_cores(), per_node=per_node)
            settings = settings.model_copy(update={"concurrency": here})
        super().__init__(settings)
        self._api = await _opened(self, judge_api(self))

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The application of this replica; Serve calls this method after the constructor."""
        return self._api


class Engine(EngineService):
    """One replica of the engine, which Serve replaces if it has died (`check_health`)."""

    async def __init__(self, settings: EngineServiceSettings) -> None:  # type: ignore[misc]  # Serve awaits it
        super().__init__(settings)
        self._api = await _opened(self, engine_api(self))

    def __serve_build_asgi_app__(self) -> FastAPI:
        """As of `Judge`."""
        return self._api


# Not decorators: Ray would then send the classes to replicas by value. Under names of their own, they are imported.
_Judge = serve.ingress()(Judge)
_Engine = serve.ingress()(Engine)


def judge_app(arguments: Mapping[str, Any]) -> serve.Application:
    """The judge's app from `key=value` arguments, which override `COBALT_JUDGE_*` variables.

    Raises:
        UserError: a setting is unknown or has a bad value, bubblewrap is not installed on the only node, or the
            cluster is not private; as `nodes.join`.
        ServiceDown: as `nodes.join`.
    """
    settings = ServiceSettings.read(arguments)
    nodes.join(namespace="serve")
    require_private(allow_open=settings.allow_open_cluster)
    living = nodes.living_nodes()
    if len(living) == 1:  # other nodes may have what this machine lacks, and each replica checks its own
        check_paths(settings)
        if not settings.unsafe:
            find_bwrap()
    replicas, per_node = nodes.replica_counts(living, settings.num_replicas)
    cpus, resources = nodes.reservation(living)
    deployment = serve.deployment(
        name="Evaluator",
        num_replicas=replicas,
        max_replicas_per_node=per_node if len(living) > 1 else None,
        # Programs wait in the replica, where the wait is measured. In Serve's router they would wait by polling for a
        # free replica, which costs more CPU than the tests.
        max_ongoing_requests=1000,
        ray_actor_options={"num_cpus": cpus, "resources": resources},
        graceful_shutdown_wait_loop_s=0.1,  # Serve's 2 s pass even if no request is left
        logging_config=LoggingConfig(encoding="JSON", enable_access_log=False, log_level="WARNING"),
    )(_Judge)
    return deployment.bind(settings, per_node)


def start_judge(app: str) -> None:
    """Start the judge's app under a name, with the settings of the environment, on the cluster that was joined.

    Raises:
        UserError: as `judge_app`.
        InfrastructureError: it did not start.
    """
    try:
        serve.run(judge_app({}), name=app, route_prefix=f"/{app}")
    except (RuntimeError, TimeoutError) as error:
        raise InfrastructureError(f"app {app!r} did not start: {last_line(str(error))}") from None


def engine_app(arguments: Mapping[str, Any]) -> serve.Application:
    """The engine's app from `key=value` arguments, which override `COBALT_VLLM_*` variables.

    Raises:
        UserError: a setting is unknown or has a bad value, the model cannot be found or has no chat template, or
            the cluster is not private or has too few GPUs; as `nodes.join`.
        ServiceDown: as `nodes.join`.
    """
    settings = read_settings(EngineServiceSettings, arguments, os.environ, ENVIRONMENT_PREFIX)
    settings = with_checked_model(settings)  # replicas do not run in this process's working folder
    nodes.join(namespace="serve")
    require_private(allow_open=settings.allow_open_cluster)
    gpus = [node.gpus for node in nodes.living_nodes()]
    on_gpu = settings.device == "gpu" or (settings.device == "auto" and any(gpus))
    settings = settings.model_copy(update={"device": "gpu" if on_gpu else "cpu"})
    resources: dict[str, Any] = {"num_cpus": 0.1, "runtime_env": {"env_vars": passed_on(os.environ)}}
    if on_gpu:
        resources["num_gpus"] = size = settings.tensor_parallel_size
        if sum(int(here // size) for here in gpus) < settings.num_replicas:  # Serve would wait without end
            raise UserError(
                f"num_replicas={settings.num_replicas} with tensor_parallel_size={size} needs as many times {size} GPUs"
                f" of one node, and the cluster's nodes have {', '.join(f'{here:g}' for here in gpus)}: lower one of"
                " the settings"
            )
    deployment = serve.deployment(
        name="VllmEngineActor",
        num_replicas=settings.num_replicas,
        max_ongoing_requests=4096,
        max_constructor_retry_count=1,  # what keeps vLLM from starting does so again, a minute later
        ray_actor_options=resources,
        health_check_timeout_s=120,
        graceful_shutdown_wait_loop_s=0.1,  # Serve's 2 s pass even if no request is left
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )(_Engine)
    return deployment.bind(settings)


def _check_port() -> None:
    """Raise if another program uses Serve's port; Serve itself would print pages of tracebacks."""
    if serve.status().proxies:
        return  # Serve has its port already, and another app can be added
    try:
        socket.create_server(("127.0.0.1", _SERVE_PORT)).close()
    except OSError:
        raise UserError(
            f"port {_SERVE_PORT} is in use by another program: stop it, or start Serve on another port first"
            " (serve start --http-port PORT)"
        ) from None
