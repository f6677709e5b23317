"""The flags that scripts of proprietary models share, and the engine that they build. Parsing is `cobalt.cli`'s."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from cobalt.settings import read_settings

if TYPE_CHECKING:
    from cobalt.engine.litellm_engine import LiteLLMEngine

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ApiFlags:
    """Flags of the scripts that ask a provider; names and defaults are the paper's where it has them."""

    model_name: str = "gpt-5-mini-2025-08-07"
    """Model, as LiteLLM names it; with api_base, as the server names it."""
    reasoning_effort: Annotated[str, tyro.conf.arg(aliases=["-r"])] = "medium"
    """How long a reasoning model thinks; "default" sends nothing."""
    api_base: str | None = None
    """URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1."""
    key_file: Path | None = None
    """Text file with one key, or lines NAME=value (OPENAI_API_KEY, AWS_ACCESS_KEY_ID, ...)."""
    openai_api_key: str = ""
    """Seen by other users of the machine: prefer the environment's OPENAI_API_KEY, or key_file."""
    aws_access_key_id: str = ""
    """For Bedrock. As openai_api_key: prefer the environment's AWS_ACCESS_KEY_ID."""
    aws_secret_access_key: str = ""
    """For Bedrock. As openai_api_key: prefer the environment's AWS_SECRET_ACCESS_KEY."""
    aws_region_name: str = ""
    """For Bedrock; otherwise AWS_REGION_NAME or the AWS profile's region."""
    requests_per_minute: float | None = None
    """Most requests a minute, retries included."""
    spend_limit: float | None = None
    """Most US dollars that the calls of this result may cost, resumed runs included."""
    prompt_price: float | None = None
    """US dollars for a million prompt tokens, where LiteLLM knows no price or a wrong one."""
    completion_price: float | None = None
    """US dollars for a million completion tokens."""
    request_timeout: float = 600
    """Seconds until a request without an answer is given up and made again."""
    attempts: int = 8
    """How often a request is made in all before its failure counts."""

    @asynccontextmanager
    async def open_engine(
        self, result: Path | None, response_format: dict[str, Any] | None = None
    ) -> AsyncIterator["LiteLLMEngine"]:
        """The engine that the flags ask for, with the log of the calls that `result` has paid for.

        Raises:
            UserError: see `LiteLLMEngine` and `CallLog`.
        """
        from cobalt.engine.call_log import CallLog
        from cobalt.engine.credentials import read_credentials
        from cobalt.engine.litellm_engine import LiteLLMEngine, LiteLLMSettings

        keys = {
            "OPENAI_API_KEY": self.openai_api_key,
            "AWS_ACCESS_KEY_ID": self.aws_access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.aws_secret_access_key,
            "AWS_REGION_NAME": self.aws_region_name,
        }
        credentials, warnings = read_credentials(keys, self.key_file)
        for warning in warnings:
            logger.warning("%s", warning)
        names = LiteLLMSettings.model_fields.keys() - {"response_format", "longest_backoff"}
        values = {name: getattr(self, name) for name in names} | {"response_format": response_format}
        settings = read_settings(LiteLLMSettings, values, {}, "")
        if result is None:
            async with LiteLLMEngine(settings, credentials) as engine:
                yield engine
            return
        with CallLog(result) as log:
            async with LiteLLMEngine(settings, credentials, log) as engine:
                yield engine
            if engine.spent:
                logger.info("%s: $%.4f spent in all", log.path, engine.spent)
