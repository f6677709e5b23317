"""The common part of the two apps: the service's lifetime, answers to errors, and the routes for operators."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from cobalt.stage.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from cobalt.serving.engine_app import EngineService
    from cobalt.serving.judge_app import JudgeService


def service_api(service: "JudgeService | EngineService") -> FastAPI:
    """An app with `GET /describe`, `/metrics` and `/health`, whose lifespan opens and closes the service.

    `/health` is 200 as long as the service answers, else 503. Anybody may ask, and it tells nothing else.

    Every error is answered with `{"error": reason}`. 404 and 405 are FastAPI's. A `Refused` has its own status. A
    `UserError` is answered 422. An `InfrastructureError` is answered 503, which asks the client to send the request
    again.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            yield
        finally:
            await service.close()

    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    api.add_middleware(_with_own_address)

    @api.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @api.exception_handler(UserError)
    @api.exception_handler(InfrastructureError)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 422 if isinstance(error, UserError) else 503)

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


def _with_own_address(app: ASGIApp) -> ASGIApp:
    """Serves an app's own address as its route `/`, without a redirect, which few clients follow with a `POST`."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == scope.get("root_path"):
            scope = {**scope, "path": f"{scope['path']}/"}
        await app(scope, receive, send)

    return serve
