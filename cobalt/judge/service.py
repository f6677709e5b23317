"""The judge as a Ray Serve app: one deployment, reached over HTTP and over its handle alike.

`POST <route>` takes a judge request (`cobalt.judge.wire`), `POST <route>/run_code` one of SandboxFusion's
(`cobalt.judge.sandbox_fusion`). Imports Ray, so only the entry point imports it. Judging itself is `LocalJudge`'s;
here are requests, answers and the deployment's size.
"""

import logging
import math
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from ray import serve
from ray.serve.schema import LoggingConfig
from ray.util import metrics
from starlette.requests import Request
from starlette.responses import JSONResponse

from cobalt.errors import InfrastructureError, UserError
from cobalt.judge import sandbox_fusion
from cobalt.judge.doctor import require_isolation
from cobalt.judge.isolation import find_bwrap
from cobalt.judge.local import LocalJudge
from cobalt.judge.settings import JudgeSettings, usable_cores
from cobalt.judge.verdict import ExecResult
from cobalt.judge.wire import JudgeRequest
from cobalt.problem import decode_json

logger = logging.getLogger("ray.serve")  # the one that Serve writes to a replica's log file

CORES_PER_REPLICA = 8  # one event loop keeps about this many sandboxes busy with trivial tests


class ServiceSettings(JudgeSettings):
    """The judge's settings and the deployment's size.

    Attributes:
        num_replicas: Processes that hold sandboxes; None: one for every eight usable cores.
        replica_cpus: CPUs that Ray reserves for each replica. Small, because the sandboxes share the
            machine with engines by the kernel's scheduler rather than by Ray's count.
        max_ongoing_requests: Programs a replica takes at once. Many, so that programs wait in the replica, where
            the wait is measured and reported as queue time, rather than in Serve's router, whose repeated asking
            for a free place costs more CPU than the tests.
        log_level: What replicas log, as JSON lines in Serve's log folder: "WARNING" failures of the judge and
            replaced sandboxes, "INFO" a line for each program as well.
    """

    num_replicas: int | None = Field(None, ge=1)
    replica_cpus: float = Field(0.1, ge=0)
    max_ongoing_requests: int = Field(1000, ge=1)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "WARNING"


class _Metrics:
    """What Prometheus is told, through Ray: verdicts, queue time apart from run time, replaced sandboxes."""

    def __init__(self) -> None:
        seconds = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300]
        self._verdicts = metrics.Counter("cobalt_judge_verdicts", "Tests judged, by verdict", ("kind",))
        self._queue = metrics.Histogram("cobalt_judge_queue_seconds", "Wait for a free sandbox", seconds)
        self._run = metrics.Histogram("cobalt_judge_run_seconds", "Wall time of a suite", seconds)
        self._restarts = metrics.Gauge("cobalt_judge_sandbox_restarts", "Sandboxes replaced since the start")

    def observe(self, result: ExecResult, restarts: int) -> None:
        """Record one judged program, in the log too."""
        kinds = Counter(verdict.kind.value for verdict in result.verdicts)
        costs = {"queue_seconds": result.queue_seconds, "run_seconds": result.run_seconds}
        logger.info("judged", extra={"tests": len(result.verdicts), "verdicts": dict(kinds), **costs})
        for kind, count in kinds.items():
            self._verdicts.inc(count, {"kind": kind})
        self._queue.observe(result.queue_seconds)
        self._run.observe(result.run_seconds)
        self._restarts.set(restarts)


class Evaluator:
    """One replica: a pool of sandboxes behind Serve.

    It starts only where the self-check finds that isolation holds, or under the explicit `unsafe` setting.
    """

    async def __init__(self, settings: JudgeSettings) -> None:  # type: ignore[misc]  # Serve awaits it
        for handler in logger.handlers:
            logging.getLogger("cobalt.judge").addHandler(handler)
        await require_isolation(settings)
        if settings.unsafe:
            logger.warning("programs run WITHOUT isolation, by the setting 'unsafe'")
        self._judge = LocalJudge(settings)
        await self._judge.__aenter__()
        self._metrics = _Metrics()

    async def __del__(self) -> None:
        """End the sandboxes when Serve stops the replica; were it killed instead, they end by themselves."""
        judge: LocalJudge | None = getattr(self, "_judge", None)
        if judge is not None:
            await judge.close()

    async def __call__(self, payload: Request | Mapping[str, Any]) -> JSONResponse | dict[str, Any]:
        """Judge one program; a mapping comes from a handle, a request from HTTP."""
        if isinstance(payload, Request):
            return await self._answer_http(payload)
        return await self._answer(payload)

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide its verdicts; see `cobalt.judge.Judge`."""
        return await self._judge.describe()

    async def _answer(self, payload: object) -> dict[str, Any]:
        request = JudgeRequest.parse(payload)
        try:
            result = await self._judge.judge(
                request.code, request.suite, stop_at_first_failure=request.stop_at_first_failure
            )
        except InfrastructureError as error:
            logger.error("the judge failed", extra={"error": str(error)})
            raise
        self._metrics.observe(result, self._judge.restarts)
        return result.to_record()

    async def _answer_http(self, request: Request) -> JSONResponse:
        if request.method != "POST":
            return JSONResponse({"error": "send a judge request by POST"}, 405)
        door = request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/")
        if door not in ("", sandbox_fusion.PATH):
            return JSONResponse({"error": f"there is nothing at {request.url.path}"}, 404)
        try:
            payload = decode_json(await request.body())
        except UserError as error:
            return JSONResponse({"error": f"the body is {error}"}, 400)
        try:
            if door == sandbox_fusion.PATH:
                return JSONResponse(await sandbox_fusion.run_code(payload, self._judge))
            return JSONResponse(await self._answer(payload))
        except UserError as error:
            return JSONResponse({"error": str(error)}, 422)
        except InfrastructureError as error:
            return JSONResponse({"error": str(error)}, 503)


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """Build the app from `key=value` arguments and, below them, `COBALT_JUDGE_*` variables.

    Raises:
        UserError: an unknown setting, a bad value, or no bubblewrap on this machine.
    """
    settings = ServiceSettings.from_mapping(arguments, os.environ)
    if not settings.unsafe:
        find_bwrap()
    replicas = settings.num_replicas or math.ceil(usable_cores() / CORES_PER_REPLICA)
    sandboxes = settings.concurrency or max(1, usable_cores() // replicas)
    judge_settings = JudgeSettings(
        **settings.model_dump(include=set(JudgeSettings.model_fields) - {"concurrency"}), concurrency=sandboxes
    )
    deployment = serve.deployment(
        name="Evaluator",
        num_replicas=replicas,
        max_ongoing_requests=settings.max_ongoing_requests,
        ray_actor_options={"num_cpus": settings.replica_cpus},
        logging_config=LoggingConfig(encoding="JSON", enable_access_log=False, log_level=settings.log_level),
    )(Evaluator)
    return deployment.bind(judge_settings)
