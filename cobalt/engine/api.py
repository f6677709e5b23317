"""The engine of a command that uses a proprietary model: from its flags, with the log of what was paid for a result."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.call_log import CallLog
from cobalt.engine.credentials import read_credentials
from cobalt.engine.litellm_engine import LiteLLMEngine, LiteLLMSettings

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_engine(
    flags: ApiFlags, result: Path | None, response_format: dict[str, Any] | None = None
) -> AsyncIterator[LiteLLMEngine]:
    """The engine of these flags, with the log of the calls that were paid for `result`.

    Raises:
        UserError: see `LiteLLMEngine` and `CallLog`.
    """
    keys = {
        "OPENAI_API_KEY": flags.openai_api_key,
        "AWS_ACCESS_KEY_ID": flags.aws_access_key_id,
        "AWS_SECRET_ACCESS_KEY": flags.aws_secret_access_key,
        "AWS_REGION_NAME": flags.aws_region_name,
    }
    credentials = read_credentials(keys, flags.key_file)
    values = {flag.name: getattr(flags, flag.name) for flag in fields(ApiFlags)}
    settings = LiteLLMSettings(**values, response_format=response_format)
    log = None if result is None else CallLog(result)
    with log or nullcontext():
        async with LiteLLMEngine(settings, credentials, log) as engine:
            yield engine
        if log is not None and engine.spent:
            logger.info("%s: $%.4f spent in all", log.path, engine.spent)
