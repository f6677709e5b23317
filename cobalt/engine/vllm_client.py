"""The client of the vLLM service, which uses the deployment handle of a Ray Serve app.

Ray is imported when the first call is made. This module starts neither Ray nor the service.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.episode import Message
from cobalt.serving.serve_client import find_app, reason
from cobalt.stage.errors import InfrastructureError
from cobalt.stage.retrying import retrying

APP_NAME = "vllm_actor"
SERVE_COMMAND = f"serve run vllm_engine_actor:app model=MODEL --name {APP_NAME} --route-prefix /{APP_NAME}"
START_ADVICE = (
    "start the engine and the judge with `cobalt serve --model MODEL`, run one command with both by `python -m"
    " cobalt.services --model MODEL -- COMMAND`, or start the engine on a Ray cluster of your own with"
    f" `{SERVE_COMMAND}`"
)


class ServeEngine:
    """An engine that sends calls to the Ray Serve app of the given name.

    Args:
        app_name: Name of the Serve app.
        attempts: How many times a call is made before its failure is raised; a replica that died is replaced in
            about a minute.
    """

    def __init__(self, app_name: str = APP_NAME, *, attempts: int = 8) -> None:
        self._app_name = app_name
        self._attempts = attempts
        self._handle: Any = None

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw completions; see `Engine.generate`."""
        answer = await self._call("generate", list(conversation), settings.model_dump())
        return [Completion(**item) for item in answer]

    async def describe(self) -> Mapping[str, Any]:
        """The settings that decide the service's answers; see `Engine.describe`."""
        answer: Mapping[str, Any] = await self._call("describe")
        return answer

    async def _call(self, method: str, *arguments: Any) -> Any:
        attempts = retrying(self._attempts, first_pause=0.5, longest_pause=30)
        return await attempts(self._call_once, method, *arguments)

    async def _call_once(self, method: str, *arguments: Any) -> Any:
        if self._handle is None:
            self._handle = await find_app(self._app_name, START_ADVICE)
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        response = getattr(self._handle, method).remote(*arguments)
        try:
            return await response
        except asyncio.CancelledError:  # otherwise the engine goes on generating for nobody
            response.cancel()
            raise
        except (RayError, RayServeException) as error:
            raise InfrastructureError(f"the engine service failed: {reason(error)}") from error
