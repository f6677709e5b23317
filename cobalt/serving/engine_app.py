"""The engine as an HTTP app: `engine_api` of an `EngineService`. Uvicorn hosts it (`cobalt serve`), or Ray Serve."""

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter
from pydantic import ConfigDict, Field

from cobalt.engine.base import Completion, GenerationSettings
from cobalt.engine.vllm_engine import VllmEngine
from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX
from cobalt.serving.http_guard import Guard, parsed, while_connected, within
from cobalt.serving.openai_routes import OpenAIRoutes
from cobalt.serving.service_api import service_api
from cobalt.serving.settings import EngineServiceSettings
from cobalt.stage.errors import UserError


class GenerateRequest(GenerationSettings):
    """The body of a request to the app's own route: a conversation and the settings for its continuation."""

    model_config = ConfigDict(allow_inf_nan=False)

    messages: list[dict[str, str]] = Field(min_length=1)
    n: int = Field(1, ge=1)


class EngineService:
    """One engine and what its routes need.

    Args:
        settings: The engine, and the limits of its requests.
        log: See `VllmEngine`.

    Attributes:
        private: Whether nobody else can join the Ray cluster that hosts the app; the host sets it.
        openai: OpenAI's routes, from `open` on.
        metrics: Counts of the app's own route for Prometheus.
    """

    def __init__(self, settings: EngineServiceSettings, *, log: Path | None = None) -> None:
        self.settings = settings
        self.private = True
        self.guard = Guard(settings, ENVIRONMENT_PREFIX)
        self.engine = VllmEngine(settings, log=log)
        self.metrics = registry = CollectorRegistry()
        self._completions = Counter(
            "cobalt_engine_completions", "Completions, by finish reason", ["reason"], registry=registry
        )
        self._prompt = Counter("cobalt_engine_prompt_tokens", "Tokens of prompts, once for a call", registry=registry)
        self._generated = Counter("cobalt_engine_completion_tokens", "Generated tokens", registry=registry)

    async def open(self) -> None:
        """Start the engine; see `VllmEngine.__aenter__`."""
        await self.engine.__aenter__()
        description = await self.engine.describe()
        self.openai = OpenAIRoutes(
            self.engine.llm,
            [description["name"], description["model"]],
            self.engine.stops,
            self.guard,
            self.settings.max_completions,
            self.settings.max_request_seconds,
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self.engine.__aexit__()

    async def generate(self, request: GenerateRequest) -> list[Completion]:
        """Continue one conversation, and count the completions."""
        messages: Any = request.messages
        settings = GenerationSettings(**request.model_dump(exclude={"messages"}))
        completions = await self.engine.generate(messages, settings)
        self._prompt.inc(completions[0].prompt_tokens)
        for completion in completions:
            self._completions.labels(completion.finish_reason).inc()
            self._generated.inc(completion.completion_tokens)
        return completions

    async def describe(self) -> dict[str, Any]:
        """The engine's description; on a cluster that anybody can join with `"private": false`."""
        description = dict(await self.engine.describe())
        return description if self.private else description | {"private": False}

    async def check_health(self) -> None:
        """Raise ServiceDown if the engine has died."""
        await self.engine.check_health()


def engine_api(service: EngineService) -> FastAPI:
    """The app of a service; see `service_api`."""
    api = service_api(service)

    @api.post("/")
    async def generate(request: Request) -> JSONResponse:
        """`POST` a `GenerateRequest` as JSON; the answer has `responses` and the full `completions`."""
        async with within(service.settings.max_request_seconds), service.guard.body(request) as payload:
            body = parsed(GenerateRequest, payload)
            if body.n > service.settings.max_completions:
                raise UserError(f"field 'n': more than {service.settings.max_completions} (max_completions)")
            answer = await while_connected(request, service.generate(body))
        completions = [completion.model_dump() for completion in answer]
        return JSONResponse({"responses": [item["text"] for item in completions], "completions": completions})

    @api.get("/v1/models")
    async def models(request: Request) -> Response:
        """The one model that is served, in OpenAI's form."""
        return await service.openai.models(request)

    @api.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        """Continue a conversation, in OpenAI's form."""
        return await service.openai.chat(request)

    return api
