"""The engine that a command's flags and variables ask for: vLLM in its own process or behind URLs, or a provider's."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

from cobalt.engine.base import Call, Completion, Engine, GenerationSettings
from cobalt.engine.model_check import cached_config, check_model, model_path
from cobalt.engine.vllm_settings import ENVIRONMENT_PREFIX, VllmSettings
from cobalt.episode import Message
from cobalt.stage.errors import UserError
from cobalt.stage.service_flags import EngineKind
from cobalt.stage.settings import pairs, read_settings


def kind_of(model: str) -> EngineKind:
    """The kind of engine that has a model: vLLM for a folder, and for a hub name whose owner is not a provider.

    Other names are LiteLLM's. Raises UserError: the owner is a provider, and this machine's cache of the Hub has the
    model.
    """
    if model_path(model) is not None:
        return "vllm"
    owner, slash, _ = model.partition("/")
    if not slash:
        return "litellm"
    try:
        from cobalt.engine.provider_access import import_litellm

        providers = {str(getattr(provider, "value", provider)) for provider in import_litellm().provider_list}
    except UserError:  # LiteLLM is not installed
        return "vllm"
    if owner not in providers:
        return "vllm"
    if cached_config(model) is not None:
        raise UserError(
            f"--model {model}: this machine has a model of this name, and {owner} is a provider of LiteLLM: give"
            " --engine_kind vllm or --engine_kind litellm"
        )
    return "litellm"


def engine_urls(urls: Sequence[str] = ()) -> list[str]:
    """The URLs that a command's engines are at: its flags, or `COBALT_ENGINE_URL`, or `COBALT_HTTP`; [] for none."""
    base = os.environ.get("COBALT_HTTP", "").rstrip("/")
    return list(urls) or os.environ.get("COBALT_ENGINE_URL", "").split() or ([f"{base}/vllm_actor"] if base else [])


def open_vllm_or_url(
    *, model: str | None = None, urls: Sequence[str] = (), settings: Sequence[str] = (), log: Path | None = None
) -> AbstractAsyncContextManager[Engine]:
    """The engine behind the URLs (`engine_urls`), else vLLM in this process.

    Args:
        model: A model's folder or Hub name. Behind a URL, the model's name on a server that has several.
        urls: Of the flags.
        settings: `key=value`, of an engine in this process (`VllmSettings`); they go before `COBALT_VLLM_*`.
        log: File for the output of an engine in this process; see `VllmEngine`.

    Raises:
        UserError: there is neither a URL nor a model, settings come with a URL, or a setting or the model is wrong.
    """
    named = engine_urls(urls)
    if named and settings:
        raise UserError("--engine has settings of an engine in this process, and the engine is behind a URL: give one")
    if named:
        from cobalt.engine.url_engine import UrlEngine

        return UrlEngine(named, os.environ.get(f"{ENVIRONMENT_PREFIX}TOKEN"), model=model)
    if model is None:
        raise UserError(
            "there is no engine: give --model MODEL to run the engine in this process, start one with `cobalt serve"
            " --model MODEL`, or name one by --engine_url"
        )
    from cobalt.engine.vllm_engine import VllmEngine

    check_model(model)  # vLLM would find it out after half a minute
    read = read_settings(VllmSettings, pairs(settings) | {"model": model}, os.environ, ENVIRONMENT_PREFIX)
    return VllmEngine(read, log=log)


class EngineOnUse(AsyncExitStack):
    """An engine that is opened when it is first asked for something, and closed at the end of this context."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Engine]]) -> None:
        super().__init__()
        self._context = opened
        self._engine: Engine | None = None

    async def _opened(self) -> Engine:
        if self._engine is None:  # a run asks for the description first, and once
            self._engine = await self.enter_async_context(self._context())
        return self._engine

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """See `Engine.generate`."""
        return await (await self._opened()).generate(conversation, settings, call)

    async def describe(self) -> Mapping[str, Any]:
        """See `Engine.describe`."""
        return await (await self._opened()).describe()
