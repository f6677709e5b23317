"""The part that the judge's and the engine's app share: the service's lifetime, and the routes for operators."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from cobalt.serving.http_guard import guarded_api

if TYPE_CHECKING:
    from cobalt.serving.engine_app import EngineService
    from cobalt.serving.judge_app import JudgeService


def service_api(service: "JudgeService | EngineService") -> FastAPI:
    """A guarded app with `GET /describe`, `/metrics` and `/health`, whose lifespan opens and closes the service.

    `/health` is 200 as long as the service answers, else 503. Anybody may ask, and it tells nothing else.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            yield
        finally:
            await service.close()

    api = guarded_api(lifespan)

    @api.get("/describe")
    async def describe(request: Request) -> JSONResponse:
        service.guard.admit(request)
        return JSONResponse(await service.describe())

    @api.get("/metrics")
    async def metrics(request: Request) -> Response:
        service.guard.admit(request)
        return Response(generate_latest(service.metrics), media_type=CONTENT_TYPE_LATEST)

    @api.get("/health")
    async def health() -> JSONResponse:
        await service.check_health()
        return JSONResponse({"status": "ok"})

    return api
