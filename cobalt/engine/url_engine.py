"""An engine behind URLs."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from cobalt.engine.base import Call, Completion, GenerationSettings
from cobalt.episode import Message


class UrlEngine:
    """An `Engine` behind one or several URLs; an async context manager."""

    def __init__(
        self, urls: Sequence[str], token: str | None = None, *, model: str | None = None, tokenizer: str | None = None
    ) -> None:
        self.urls = urls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close the connections."""

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw completions; see `Engine.generate`."""
        raise NotImplementedError

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`."""
        raise NotImplementedError
