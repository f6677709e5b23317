"""The client of a rollout's engine where there is only one: it need not ask for each response which engine is free."""

from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient


class OneEngineClient(LLMServerClient):  # type: ignore[misc]  # veRL is not typed
    """VeRL's client without the process that balances the load.

    Args:
        server: The engine's address and its actor.
        keywords: Of veRL.
    """

    def __init__(self, *, server: tuple[str, Any], **keywords: Any) -> None:
        super().__init__(**keywords)
        self._server = server

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        return self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Nothing was acquired."""
