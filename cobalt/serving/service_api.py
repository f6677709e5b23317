"""The part that the judge's and the engine's app share: the service's lifetime, and the routes for operators."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from cobalt.serving.http_guard import Guard, guarded_api


class Service(Protocol):
    """What an app serves."""

    guard: Guard

    async def open(self) -> None:
        """Start what the routes need."""
        ...

    async def close(self) -> None:
        """Stop it."""
        ...

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide the service's answers."""
        ...

    async def check_health(self) -> None:
        """Raise ServiceDown if the service cannot answer any more."""
        ...


def service_api(service: Service) -> FastAPI:
    """A guarded app with `GET /describe` and `/health`, whose lifespan opens and closes the service.

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

    @api.get("/health")
    async def health() -> JSONResponse:
        await service.check_health()
        return JSONResponse({"status": "ok"})

    return api
