"""The two apps on Ray Serve: `serve run remote_reward_server:app` and `serve run vllm_engine_actor:app`.

Serve gives them replicas on several nodes, and replaces those that die. A replica starts only on a cluster that asks
for Ray's token, unless `allow_open_cluster` is set. The app `evaluator` also answers over its deployment handle
(`judge`, `describe`), which training runs on a cluster use.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
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


def join_or_start() -> None:
    """Join the cluster that `RAY_ADDRESS` names, or start one on this machine, unless this process has joined one.

    Raises:
        UserError: the address is not one, this user has not the cluster's token, or Ray was imported without the
            variables that it needs for this cluster.
        ServiceDown: nothing answers there, or it cannot be joined.
    """
    if ray.is_initialized():
        return
    address = cluster.named_cluster()
    if address:
        names = ("RAY_AUTH_MODE", cluster.LOOPBACK_VARIABLE)
        before = [os.environ.get(name) for name in names]
        cluster.prepare_to_join(address)
        needed = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name) not in before]
        if needed:
            raise UserError(f"the Ray cluster at {address} needs `export {' '.join(needed)}`, set before Ray starts")
    else:
        os.environ["RAY_TMPDIR"] = str(private_folder())
        cluster.keep_token_private(create=True)
    nodes.join(address or "local", namespace="serve")


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


class _Replica:
    """A service in a replica of Serve, which awaits the constructor and reports its errors."""

    async def _open(self, service: JudgeService | EngineService, api: FastAPI) -> None:
        logger = logging.getLogger("cobalt")  # whose messages go to the replica's log file
        logger.setLevel(logging.WARNING)
        for handler in logging.getLogger("ray.serve").handlers:
            logger.addHandler(handler)
        allow_open = service.settings.allow_open_cluster
        service.private = await asyncio.to_thread(require_private, allow_open=allow_open)
        await service.open()

        @asynccontextmanager
        async def closing(_: Any) -> AsyncIterator[None]:
            yield
            await service.close()

        api.router.lifespan_context = closing
        self._api = api

    def __serve_build_asgi_app__(self) -> FastAPI:
        """The application of this replica; Serve calls this method after the constructor."""
        return self._api


class Judge(_Replica):
    """One replica of the judge, with a pool of sandboxes.

    Args:
        settings: Of the service.
        per_node: The most replicas on one node, which share its cores.
    """

    async def __init__(self, settings: ServiceSettings, per_node: int) -> None:  # type: ignore[misc]  # Serve awaits it
        if settings.concurrency is None:
            here = nodes.sandboxes(nodes.this_node(), cores_here=usable_cores(), per_node=per_node)
            settings = settings.model_copy(update={"concurrency": here})
        self._service = JudgeService(settings)
        await self._open(self._service, judge_api(self._service))

    async def judge(self, payload: object) -> dict[str, Any]:
        """Judge one program; see `JudgeService.judge`. Callers of the handle call this method by name."""
        return await self._service.judge(payload)

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide verdicts; see `cobalt.judge.Judge`."""
        return await self._service.describe()


class Engine(_Replica):
    """One replica of the engine."""

    async def __init__(self, settings: EngineServiceSettings) -> None:  # type: ignore[misc]  # Serve awaits it
        self._service = EngineService(settings)
        await self._open(self._service, engine_api(self._service))

    async def check_health(self) -> None:
        """Raise if the engine has died, so that Serve replaces the replica."""
        await self._service.check_health()


# Not decorators: Ray would then send the classes to replicas by value. Under names of their own, they are imported.
_Judge = serve.ingress()(Judge)
_Engine = serve.ingress()(Engine)


def judge_app(arguments: Mapping[str, Any]) -> serve.Application:
    """The judge's app from `key=value` arguments, which override `COBALT_JUDGE_*` variables.

    Raises:
        UserError: a setting is unknown or has a bad value, bubblewrap is not installed on the only node, or the
            cluster is not private; as `join_or_start`.
        ServiceDown: as `join_or_start`.
    """
    settings = ServiceSettings.read(arguments)
    join_or_start()
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
            the cluster is not private or has too few GPUs; as `join_or_start`.
        ServiceDown: as `join_or_start`.
    """
    settings = read_settings(EngineServiceSettings, arguments, os.environ, ENVIRONMENT_PREFIX)
    settings = with_checked_model(settings)  # replicas do not run in this process's working folder
    join_or_start()
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


def private_folder() -> Path:
    """A folder of this user alone in which Ray may keep its files, as the value of `RAY_TMPDIR`; made if missing.

    Ray gives everybody write access to its own folder (`ray` in this one), so only a folder around it keeps others from
    its sockets and logs. `scripts/ray_cluster.sh` takes the same.

    Raises:
        UserError: the folder cannot be made, or is another user's.
    """
    base = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
    folder = base if _is_private(base) else base / f"cobalt-ray-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        raise UserError(f"the folder {folder} for Ray is not this user's alone: set RAY_TMPDIR to one of mode 700")
    return folder


def _is_private(folder: Path) -> bool:
    """Whether nobody else may enter the folder, which is not a link."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077
