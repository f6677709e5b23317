"""The judge as an HTTP app: `judge_api` of a `JudgeService`. Uvicorn hosts it (`cobalt serve`), or Ray Serve.

`POST /` takes a judge request (`cobalt.judge.wire`); for the routes of operators see `service_api`.
"""

import dataclasses
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cobalt.judge.doctor import require_isolation
from cobalt.judge.local import LocalJudge
from cobalt.judge.settings import ENVIRONMENT_PREFIX
from cobalt.judge.wire import JudgeRequest, Suites, UnknownSuite, values_of
from cobalt.serving.http_guard import Guard, while_connected, within
from cobalt.serving.service_api import service_api
from cobalt.serving.settings import ServiceSettings

logger = logging.getLogger(__name__)

_BUCKETS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300]  # seconds


class JudgeService:
    """A pool of sandboxes and what the routes need besides it.

    Args:
        settings: The judge's settings and the limits of requests. Those of a deployment (replicas) count for its host.

    Attributes:
        private: Whether only the user's own processes reach the host other than by the guarded routes; the host sets
            it.
        metrics: Counts and times for Prometheus.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.private = True
        self.guard = Guard(settings, ENVIRONMENT_PREFIX, values_of(settings.max_tests))
        self._judge = LocalJudge(settings.of_the_judge())
        self._suites = Suites()
        self.metrics = registry = CollectorRegistry()
        self._verdicts = Counter("cobalt_judge_verdicts", "Tests judged, by verdict", ["kind"], registry=registry)
        self._queue, self._run = (
            Histogram(f"cobalt_judge_{name}_seconds", about, buckets=_BUCKETS, registry=registry)
            for name, about in (("queue", "Wait for a free sandbox"), ("run", "Wall time of a suite"))
        )
        restarts = Gauge("cobalt_judge_sandbox_restarts", "Sandboxes replaced since the start", registry=registry)
        restarts.set_function(lambda: self._judge.restarts)

    async def open(self) -> None:
        """Check that isolation holds, unless `unsafe` is set, and start the sandboxes.

        Raises:
            UserError: programs cannot be isolated on this machine.
        """
        await require_isolation(self._judge.settings)
        if self.settings.unsafe:
            logger.warning("programs run WITHOUT isolation, by the setting 'unsafe'")
        await self._judge.__aenter__()

    async def close(self) -> None:
        """End the sandboxes. Those of a host that is killed end by themselves, unless bubblewrap still starts them."""
        await self._judge.close()

    async def check_health(self) -> None:
        """Nothing: broken sandboxes are replaced, and a judge whose process lives can answer."""

    async def judge(self, payload: object) -> dict[str, Any]:
        """Judge one program, a request of `cobalt.judge.wire`; returns `ExecResult.to_record()`.

        Raises:
            UserError: a field is missing, malformed, unknown or over a limit; the message names the field.
            UnknownSuite: the request names a suite that is not kept.
            InfrastructureError: the judge failed, not the program.
        """
        request = JudgeRequest.parse(payload, max_tests=self.settings.max_tests, suites=self._suites)
        result = await self._judge.judge(
            request.code, request.suite, stop_at_first_failure=request.stop_at_first_failure
        )
        for verdict in result.verdicts:
            self._verdicts.labels(verdict.kind.value).inc()
        self._queue.observe(result.queue_seconds)
        self._run.observe(result.run_seconds)
        return dataclasses.replace(result, private=self.private).to_record()

    async def describe(self) -> dict[str, Any]:
        """The settings that decide verdicts; see `cobalt.judge.Judge`."""
        decisive = dict(await self._judge.describe())
        return decisive if self.private else {**decisive, "private": False}


def judge_api(service: JudgeService) -> FastAPI:
    """The app of a service; see `service_api`."""
    api = service_api(service)

    @api.exception_handler(UnknownSuite)
    async def unknown_suite(_: Request, error: UnknownSuite) -> JSONResponse:
        return JSONResponse({"error": str(error), "unknown_suite": error.digest}, 409)

    @api.post("/")
    async def judge(request: Request) -> JSONResponse:
        async with within(service.settings.max_request_seconds), service.guard.body(request) as payload:
            return JSONResponse(await while_connected(request, service.judge(payload)))

    return api
