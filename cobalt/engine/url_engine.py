"""`UrlEngine`, the client of engines behind URLs: apps of this project, or any server of OpenAI's chat completions.

An app answers to `GET /describe` and takes conversations by `POST /` (`cobalt.serving.engine_app`). Any other server is
foreign (`cobalt.engine.foreign`).
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.engine.foreign import ForeignServer, foreign_server
from cobalt.engine.model_check import model_path
from cobalt.engine.model_name import fingerprint
from cobalt.episode import Message
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.servers import Servers, encode

START_ADVICE = (
    "start the engine with `cobalt serve --model MODEL`, with `serve run vllm_engine_actor:app model=MODEL --name"
    " vllm_actor --route-prefix /vllm_actor` or with `vllm serve MODEL`, name another one by --engine_url, or give"
    " `cobalt sample` or `repair` --model MODEL alone, which then run it themselves"
)
_ABSENT = (404, 405)  # what a server answers that has no such route


class UrlEngine:
    """An `Engine` behind one or several URLs; an async context manager, to be used in one event loop.

    A call that is cancelled closes its request, upon which the app ends the generation.

    Args:
        urls: Addresses of the app, such as `http://127.0.0.1:8000/vllm_actor`, or of OpenAI's routes, with or without
            their `/v1`. All must serve the same model with the same settings.
        token: Sent as `Authorization: Bearer TOKEN`; None: no token is sent.
        model: The model that must be served: its name, or its folder; of a foreign server the name of one of its
            models. None: the one that is served.
        attempts: Number of times that a request is sent before its failure is raised.

    Raises:
        UserError: a URL is not one.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None = None,
        *,
        model: str | None = None,
        attempts: int = 8,
    ) -> None:
        bases = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._servers = Servers(bases, token, name="the engine", start_advice=START_ADVICE, attempts=attempts)
        self._model = model
        self._asking = asyncio.Lock()
        self._description: Mapping[str, Any] | None = None
        self._foreign: ForeignServer | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._servers.close()

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw completions; see `Engine.generate`. Raises UserError: the server refuses token, size or conversation."""
        await self.describe()
        if self._foreign is not None:
            return await self._foreign.generate(conversation, settings)
        answer = await self._servers.post("/", encode({"messages": list(conversation)} | settings.model_dump()))
        try:
            return [Completion.model_validate(item) for item in json.loads(answer.content)["completions"]]
        except (ValueError, LookupError, TypeError) as error:
            raise InfrastructureError(f"the engine's answer has no completions ({error})") from None

    async def describe(self) -> Mapping[str, Any]:
        """The servers' description; of a foreign server its entry of `/v1/models`, with `"foreign": true`.

        Raises UserError: the servers differ, or serve another model.
        """
        async with self._asking:
            if self._description is None:
                self._description = await self._ask()
        return self._description

    async def _ask(self) -> Mapping[str, Any]:
        answers = await self._servers.ask_all("/describe", accept=_ABSENT)
        if not any(answer.is_success for answer in answers):
            self._foreign = await foreign_server(self._servers, self._model)
            return self._foreign.description
        description = await self._servers.describe()
        if self._model is not None and not _is_served(self._model, description):
            raise UserError(
                f"the engine at {self._servers.urls[0]} serves {description.get('name')}, and not {self._model}:"
                " leave --model out, or start the engine with that model"
            )
        return description


def _is_served(model: str, description: Mapping[str, Any]) -> bool:
    """Whether an app serves a model, by its folder's files or by its name."""
    path = model_path(model)
    if path is not None and (path / "config.json").is_file():
        return bool(fingerprint(path) == description.get("fingerprint"))
    return model in (description.get("model"), description.get("name"))
