"""The judge as a Ray Serve app: one deployment, reached over HTTP and over its handle.

`POST <route>` takes a judge request (`cobalt.judge.wire`). `POST <route>/run_code` takes a request in SandboxFusion's
format (`cobalt.serving.sandbox_fusion`). This module handles requests, answers and the deployment's size; `LocalJudge`
does the judging, and `serving.http_guard` decides who may ask over HTTP. Only the entry point imports this module,
because it imports Ray.
"""

import asyncio
import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

import ray
from fastapi import Request
from fastapi.responses import JSONResponse
from ray import serve
from ray.serve.schema import LoggingConfig
from ray.util import metrics

from cobalt.judge.doctor import require_isolation
from cobalt.judge.local import LocalJudge
from cobalt.judge.sandbox.isolation import check_paths, find_bwrap
from cobalt.judge.settings import ENVIRONMENT_PREFIX, usable_cores
from cobalt.judge.verdict import ExecResult
from cobalt.judge.wire import JudgeRequest, values_of
from cobalt.serving import cluster, nodes, sandbox_fusion
from cobalt.serving.http_guard import Guard, guarded_api, within
from cobalt.serving.judge_service_settings import ServiceSettings
from cobalt.stage.errors import InfrastructureError

logger = logging.getLogger("ray.serve")  # the one that Serve writes to a replica's log file


class _Metrics:
    """Prometheus metrics, through Ray: verdicts, queue time, run time and replaced sandboxes."""

    def __init__(self) -> None:
        seconds = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300]
        self._verdicts = metrics.Counter("cobalt_judge_verdicts", "Tests judged, by verdict", ("kind",))
        self._queue = metrics.Histogram("cobalt_judge_queue_seconds", "Wait for a free sandbox", seconds)
        self._run = metrics.Histogram("cobalt_judge_run_seconds", "Wall time of a suite", seconds)
        self._restarts = metrics.Gauge("cobalt_judge_sandbox_restarts", "Sandboxes replaced since the start")

    def observe(self, result: ExecResult, restarts: int) -> None:
        """Record one judged program in the metrics and in the log."""
        kinds = Counter(verdict.kind.value for verdict in result.verdicts)
        costs = {"queue_seconds": result.queue_seconds, "run_seconds": result.run_seconds}
        logger.info("judged", extra={"tests": len(result.verdicts), "verdicts": dict(kinds), **costs})
        for kind, count in kinds.items():
            self._verdicts.inc(count, {"kind": kind})
        self._queue.observe(result.queue_seconds)
        self._run.observe(result.run_seconds)
        self._restarts.set(restarts)


_api = guarded_api()


class Evaluator:
    """One replica of the Serve deployment, with a pool of sandboxes.

    A replica starts only if two conditions hold. The self-check finds that isolation holds, or `unsafe` is set; and
    the cluster is private, or `allow_open_cluster` is set.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, settings: ServiceSettings, per_node: int | None = None
    ) -> None:
        for handler in logger.handlers:
            logging.getLogger("cobalt.judge").addHandler(handler)
        self._settings = settings
        self._private = await asyncio.to_thread(cluster.require_private, allow_open=settings.allow_open_cluster)
        if not self._private:
            logger.warning("anybody can join this Ray cluster, allowed by the setting 'allow_open_cluster'")
        judge_settings = settings.of_the_judge()
        if judge_settings.concurrency is None and per_node is not None:
            here = nodes.sandboxes(nodes.this_node(), cores_here=usable_cores(), per_node=per_node)
            judge_settings = judge_settings.model_copy(update={"concurrency": here})
        await require_isolation(judge_settings)
        if settings.unsafe:
            logger.warning("programs run WITHOUT isolation, by the setting 'unsafe'")
        self._judge = LocalJudge(judge_settings)
        await self._judge.__aenter__()
        self._run_code = sandbox_fusion.RunCode(
            self._judge,
            max_run_seconds=settings.max_run_seconds,
            max_request_seconds=settings.max_request_seconds,
        )
        self._guard = Guard.of(settings, ENVIRONMENT_PREFIX, values_of(settings.max_tests))
        self._metrics = _Metrics()

    async def __del__(self) -> None:
        """End the sandboxes when Serve stops the replica. If the replica is killed, they end by themselves."""
        judge: LocalJudge | None = getattr(self, "_judge", None)
        if judge is not None:
            await judge.close()

    async def judge(self, payload: object) -> dict[str, Any]:
        """Judge one program; callers of the handle call this method by name.

        Args:
            payload: A judge request; see `cobalt.judge.wire`.

        Raises:
            UserError: a field is missing, malformed, unknown or over a limit; the message names the field.
            InfrastructureError: the judge failed, not the program.
        """
        request = JudgeRequest.parse(payload, max_tests=self._settings.max_tests)
        try:
            result = await self._judge.judge(
                request.code, request.suite, stop_at_first_failure=request.stop_at_first_failure
            )
        except InfrastructureError as error:
            logger.error("the judge failed", extra={"error": str(error)})
            raise
        self._metrics.observe(result, self._judge.restarts)
        return dataclasses.replace(result, private=self._private).to_record()

    @_api.post("/")
    async def judge_over_http(self, request: Request) -> JSONResponse:
        """`POST` a judge request as JSON."""
        async with within(self._settings.max_request_seconds):
            return JSONResponse(await self.judge(await self._guard.read(request)))

    @_api.post(f"/{sandbox_fusion.PATH}")
    async def run_code_over_http(self, request: Request) -> JSONResponse:
        """`POST` a request in SandboxFusion's format as JSON."""
        try:
            async with within(self._settings.max_request_seconds):
                return JSONResponse(await self._run_code.answer(await self._guard.read(request)))
        except InfrastructureError as error:
            return JSONResponse({"error": str(error)}, 504)  # SandboxFusion's clients retry on 504 only

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide verdicts; see `cobalt.judge.Judge`. On an open cluster, `"private": false` too."""
        decisive = await self._judge.describe()
        return decisive if self._private else {**decisive, "private": False}


# Not a decorator: Ray would then send the class to replicas by value, without the names that the module defines after
# the class. Under a name of its own, the class is imported by the replicas.
_Ingress = serve.ingress(_api)(Evaluator)


def reserved_cpus(settings: ServiceSettings) -> float:
    """CPUs that the judge's replicas reserve on the cluster that this process has joined, else on this machine."""
    placement = nodes.place(_here_or(_nodes() if ray.is_initialized() else []), replicas=settings.num_replicas)
    return 0.0 if placement.resources else placement.replicas * settings.replica_cpus


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """Build the app from `key=value` arguments, which override `COBALT_JUDGE_*` variables.

    Raises:
        UserError: a setting is unknown or has a bad value, bubblewrap is not installed on this machine, or the
            cluster is not private.
        InfrastructureError: the cluster does not answer.
    """
    settings = ServiceSettings.from_mapping(arguments, os.environ)
    cluster.require_private(allow_open=settings.allow_open_cluster)
    there = _nodes()
    if len(there) < 2:  # other nodes may have what this machine lacks, and each replica checks its own
        check_paths(settings)
        if not settings.unsafe:
            find_bwrap()
    placement = nodes.place(_here_or(there), replicas=settings.num_replicas)
    several = len(there) > 1
    if settings.concurrency is None and not several:
        share = max(1, usable_cores() // placement.replicas)
        settings = settings.model_copy(update={"concurrency": share})
    cpus = 0 if placement.resources else settings.replica_cpus
    deployment = serve.deployment(
        name="Evaluator",
        num_replicas=placement.replicas,
        max_replicas_per_node=placement.per_node if several else None,
        max_ongoing_requests=settings.max_ongoing_requests,
        ray_actor_options={"num_cpus": cpus, "resources": placement.resources},
        graceful_shutdown_wait_loop_s=0.1,  # Serve's 2 s pass even if no request is left
        logging_config=LoggingConfig(encoding="JSON", enable_access_log=False, log_level=settings.log_level),
    )(_Ingress)
    return deployment.bind(settings, placement.per_node if several else None)


def _here_or(there: list[nodes.Node]) -> list[nodes.Node]:
    return there if len(there) > 1 else [nodes.Node("", "", "", usable_cores(), 0)]


def _nodes() -> list[nodes.Node]:
    """The nodes of the cluster in use; joins it if this process has not yet. None: `serve run` will start one here."""
    if cluster.running_cluster() is None:
        return []
    cluster.join()
    return nodes.living_nodes()
