"""OpenAI's routes of the engine app: `/v1/models` and `/v1/chat/completions`.

vLLM's own serving classes read the requests and write the answers. This module adds the app's limits, and two rules
that keep these routes comparable with the app's own one: generation also ends at the token with which the chat template
ends a turn, and a field of sampling that a request leaves out has OpenAI's default, never a value of the model's
generation_config.json. The routes take text alone: no images, no parsers of tool calls, no adapters.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from cobalt.serving.http_guard import Guard, Refused, parsed, while_connected, within
from cobalt.stage.errors import InfrastructureError, UserError

SAMPLING_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Values of the fields of sampling that a request leaves out; all of them together sample from the model as it is."""


class OpenAIRoutes:
    """The routes of one replica. Every error is answered in OpenAI's form, `{"error": {"message": ...}}`.

    Args:
        engine: The replica's `AsyncLLM`.
        names: The model's names in requests; answers have the first.
        stops: Tokens that end a generation, besides those that vLLM knows; not where a request sets `ignore_eos`.
        guard: Rules on who may send requests, and how large they may be.
        max_completions: Largest number of completions of a request, its `n`.
        max_seconds: Longest time that a request may take, streamed or not.
    """

    def __init__(
        self,
        engine: Any,
        names: Sequence[str],
        stops: Sequence[int],
        guard: Guard,
        max_completions: int,
        max_seconds: float,
    ) -> None:
        from vllm import exceptions
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
        from vllm.entrypoints.openai.engine.protocol import ErrorResponse, GenerationError
        from vllm.entrypoints.openai.models.protocol import BaseModelPath
        from vllm.entrypoints.openai.models.serving import OpenAIServingModels
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        # The path of the model's folder is nobody else's business.
        self._name, self._names = names[0], set(names)
        self._models = OpenAIServingModels(engine, [BaseModelPath(name=self._name, model_path=self._name)])
        template = {"chat_template": None, "chat_template_content_format": "auto"}  # the model's own
        shared = _renderer(engine, self._models, template) | {"request_logger": None}
        self._chat = OpenAIServingChat(engine, self._models, "assistant", **shared, **template)
        self._chat_request = ChatCompletionRequest
        self._error_response = ErrorResponse
        # vLLM 0.24 has no common class of a client's errors. Most of them are ValueErrors there; a field for what vLLM
        # cannot do is a NotImplementedError, which `create_error_response` answers as such.
        client_error = getattr(exceptions, "VLLMClientError", exceptions.VLLMNotFoundError)
        self._vllm_errors = (client_error, GenerationError, ValueError, NotImplementedError, jinja2.TemplateError)
        self._engine_errors = (EngineDeadError, EngineGenerateError)
        self._stops = list(stops)
        self._guard = guard
        self._max_completions = max_completions
        self._max_seconds = max_seconds

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`: a list of one model."""
        try:
            self._guard.admit(request)
        except Refused as error:
            return self._refusal(error.detail, error.status_code)
        return JSONResponse((await self._models.show_available_models()).model_dump())

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        deadline = asyncio.get_running_loop().time() + self._max_seconds
        try:
            async with within(self._max_seconds), self._guard.body(request) as payload:
                body = self._request(payload)
                answer = await while_connected(request, self._chat.create_chat_completion(body))
        except Refused as error:
            return self._refusal(error.detail, error.status_code)
        except UserError as error:
            return self._refusal(str(error), 400)
        except RecursionError:  # of vLLM, for JSON in a string: the arguments of a tool call
            return self._refusal("a field is nested too deeply", 400)
        except InfrastructureError as error:
            return self._refusal(str(error), 503)
        except self._engine_errors as error:
            if isinstance(error.__cause__, OverflowError):  # a number that does not fit the message to the engine
                return self._refusal(f"a field is out of range: {error.__cause__}", 400)
            return self._refusal(f"the engine failed: {error.__cause__ or error!r}", 503)
        except self._vllm_errors as error:
            answer = self._chat.create_error_response(error)
        if isinstance(answer, self._error_response):
            if answer.error.code == HTTPStatus.NOT_FOUND:
                answer.error.message += f" This engine serves `{self._name}`."
            return JSONResponse(answer.model_dump(), answer.error.code)
        if body.stream:
            late = self._refusal(f"no result within {self._max_seconds:g} s (max_request_seconds)", 503)
            events = _until(deadline, answer, bytes(late.body).decode())
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(answer.model_dump())

    def _request(self, payload: object) -> Any:
        """A decoded body as vLLM's request."""
        check_text(payload)
        try:
            body = parsed(self._chat_request, payload)
        except (TypeError, AttributeError) as error:  # vLLM's own checks run before the fields' types are checked
            raise UserError(f"a field has the wrong type: {error}") from None
        if (body.n or 1) > self._max_completions:
            raise UserError(f"{body.n} completions asked for, more than {self._max_completions} (max_completions)")
        if body.model in self._names:
            body.model = self._name
        for name, default in SAMPLING_DEFAULTS.items():
            if getattr(body, name) is None:
                setattr(body, name, default)
        if not body.ignore_eos:
            body.stop_token_ids = [*(body.stop_token_ids or []), *self._stops]
        return body

    def _refusal(self, message: str, status: int) -> JSONResponse:
        code = HTTPStatus(status)
        return JSONResponse(self._chat.create_error_response(message, code.phrase, code).model_dump(), status)


def _renderer(engine: Any, models: Any, template: dict[str, Any]) -> dict[str, Any]:
    """The renderer of prompts in vLLM, as the argument of its serving classes; the name depends on the version."""
    common = {"model_config": engine.model_config, "renderer": engine.renderer, "request_logger": None} | template
    try:
        from vllm.renderers.online_renderer import OnlineRenderer
    except ImportError:  # vLLM 0.24, the version of the profile gpu
        from vllm.entrypoints.serve.render.serving import OpenAIServingRender

        return {"openai_serving_render": OpenAIServingRender(model_registry=models.registry, **common)}
    return {"online_renderer": OnlineRenderer(**common)}


def check_text(payload: object) -> None:
    """Refuse media in a chat request: vLLM would fetch an address that a request names.

    Raises:
        UserError: a part of a message is of another type than "text".
    """
    messages = payload.get("messages") if isinstance(payload, dict) else None
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if not isinstance(part, dict) or part.get("type") != "text":
                raise UserError(f"field 'messages.{number}.content': this engine takes parts of the type 'text' alone")


async def _until(deadline: float, stream: AsyncGenerator[str, None], failure: str) -> AsyncIterator[str]:
    """The events of a stream, which ends with `failure` if it is not finished at a time of the loop's clock."""
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                event = await anext(stream, None)
            if event is None:
                return
            yield event
    except TimeoutError:
        yield f"data: {failure}\n\ndata: [DONE]\n\n"
    finally:
        await stream.aclose()
