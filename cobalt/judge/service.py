"""The judge as a Ray Serve app: one deployment, reached over HTTP and over its handle alike.

Imports Ray, so only the entry point imports it. Judging itself is `LocalJudge`'s; here are requests, answers
and the deployment's size.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from pydantic import Field
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.responses import JSONResponse

from cobalt.errors import InfrastructureError, UserError
from cobalt.judge.local import LocalJudge
from cobalt.judge.settings import JudgeSettings, usable_cores
from cobalt.judge.wire import JudgeRequest

CORES_PER_REPLICA = 8  # one event loop keeps about this many sandboxes busy with trivial tests


class ServiceSettings(JudgeSettings):
    """The judge's settings and the deployment's size.

    Attributes:
        num_replicas: Processes that hold sandboxes; None: one for every eight usable cores.
        replica_cpus: CPUs that Ray reserves for each replica. Small, because the sandboxes share the
            machine with engines by the kernel's scheduler rather than by Ray's count.
        max_ongoing_requests: Programs a replica takes at once; None: twice its sandboxes, and the rest
            wait, visibly, in Serve's queue.
    """

    num_replicas: int | None = Field(None, ge=1)
    replica_cpus: float = Field(0.1, ge=0)
    max_ongoing_requests: int | None = Field(None, ge=1)


class Evaluator:
    """One replica: a pool of sandboxes behind Serve."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._judge = LocalJudge(settings)
        self._started = False

    async def __call__(self, payload: Request | Mapping[str, Any]) -> JSONResponse | dict[str, Any]:
        """Judge one program; a mapping comes from a handle, a request from HTTP."""
        if isinstance(payload, Request):
            return await self._answer_http(payload)
        return await self._answer(payload)

    async def _answer(self, payload: object) -> dict[str, Any]:
        request = JudgeRequest.parse(payload)
        if not self._started:
            self._started = True
            await self._judge.__aenter__()
        result = await self._judge.judge(
            request.code, request.suite, stop_at_first_failure=request.stop_at_first_failure
        )
        return result.to_record()

    async def _answer_http(self, request: Request) -> JSONResponse:
        if request.method != "POST":
            return JSONResponse({"error": "send a judge request by POST"}, 405)
        try:
            payload = json.loads(await request.body())
        except ValueError as error:
            return JSONResponse({"error": f"the body is not valid JSON ({error})"}, 400)
        try:
            return JSONResponse(await self._answer(payload))
        except UserError as error:
            return JSONResponse({"error": str(error)}, 422)
        except InfrastructureError as error:
            return JSONResponse({"error": str(error)}, 503)


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """Build the app from `key=value` arguments and, below them, `COBALT_JUDGE_*` variables.

    Raises:
        UserError: an unknown setting or a bad value.
    """
    settings = ServiceSettings.from_mapping(arguments, os.environ)
    replicas = settings.num_replicas or math.ceil(usable_cores() / CORES_PER_REPLICA)
    sandboxes = settings.concurrency or max(1, usable_cores() // replicas)
    ongoing = settings.max_ongoing_requests or 2 * sandboxes
    judge_settings = JudgeSettings(
        **settings.model_dump(include=set(JudgeSettings.model_fields) - {"concurrency"}), concurrency=sandboxes
    )
    deployment = serve.deployment(
        name="Evaluator",
        num_replicas=replicas,
        max_ongoing_requests=ongoing,
        ray_actor_options={"num_cpus": settings.replica_cpus},
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )(Evaluator)
    return deployment.bind(judge_settings)
