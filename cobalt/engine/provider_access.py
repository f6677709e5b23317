"""LiteLLM's access to the provider of a model: LiteLLM itself, the provider's name, and the keys and URL of requests.

A key is taken from a flag or the environment, in this order, and kept out of messages. A mistake that shows without a
request is a `UserError` here.
"""

import asyncio
import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from cobalt.engine.api_flags import ApiFlags
from cobalt.stage.environment import environment_variables, names_a_secret
from cobalt.stage.errors import ServiceDown, UserError
from cobalt.stage.servers import server_url

logger = logging.getLogger(__name__)

_SHORTEST_SECRET = 4  # to hide shorter values (placeholders such as "x") would put stars into ordinary text
_NO_KEY = "none"  # for servers without keys, because the OpenAI client requires one
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION_NAME")


@dataclass(frozen=True)
class Credentials:
    """Variables that a provider reads (`OPENAI_API_KEY`, `AWS_ACCESS_KEY_ID`, ...), and all others, by name."""

    values: Mapping[str, str] = field(repr=False)

    def get(self, variable: str) -> str | None:
        """A variable's value, None if it is not set or empty; raises UserError: it holds characters that no key has."""
        value = self.values.get(variable, "").strip()
        if not all("!" <= character <= "~" for character in value):
            raise UserError(f"{variable} holds blanks or characters that no key has: copy it again")
        return value or None

    def scrub(self, text: str) -> str:
        """`text` with the value of every variable that has the name of a secret replaced by stars."""
        secrets = [value for name, value in self.values.items() if names_a_secret(name)]
        for secret in sorted({secret.strip() for secret in secrets}, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text


def read_credentials(flags: Mapping[str, str]) -> Credentials:
    """Collect keys from flags and the environment; warns of keys in flags, which other users can see.

    `flags` has values by variable; empty ones count as not set.
    """
    values = {variable: value for variable, value in flags.items() if value}
    if keys := sorted(filter(names_a_secret, values)):
        logger.warning("keys in flags can be seen by other users of this machine: set %s instead", ", ".join(keys))
    return Credentials(os.environ | values)


def import_litellm() -> Any:
    """LiteLLM, without its messages and with the prices of the installed package.

    Raises UserError: it is not installed.
    """
    local_prices = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        with environment_variables(LITELLM_LOCAL_MODEL_COST_MAP=local_prices):
            import litellm
    except ImportError:
        raise UserError("LiteLLM is not installed: run scripts/setup.sh --with api") from None
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # its messages repeat requests
    # Of an answer whose content is a list of parts, which the engine reads by itself.
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
    return litellm


def find_access(litellm: Any, flags: ApiFlags, credentials: Credentials) -> tuple[str, str, str, dict[str, Any]]:
    """The names of the model and its provider in LiteLLM, the variable that holds the key, and arguments for LiteLLM.

    Raises UserError: `api_base` is not a plain URL of a server, LiteLLM knows no provider of the model, or there is no
    key.
    """
    name, base = flags.model_name, flags.api_base
    if base is not None:
        url = server_url(base)
        if url is None or url.userinfo or url.query:
            raise UserError(
                "--api_base is not a URL such as http://127.0.0.1:8000/v1, without user, password and query"
            )
        own = credentials.get("OPENAI_API_KEY") or _NO_KEY
        return name, "openai", "OPENAI_API_KEY", {"api_base": base, "api_key": own}
    try:
        model, provider, _, _ = map(str, litellm.get_llm_provider(name))
    except litellm.BadRequestError:
        raise UserError(
            f"LiteLLM knows no provider of model {name!r}: give its name as PROVIDER/MODEL, or --api_base with the"
            " URL of an OpenAI-compatible server"
        ) from None
    if provider.startswith(("bedrock", "sagemaker")):
        values = {name.lower(): value for name in _AWS if (value := credentials.get(name))}
        return model, provider, " and ".join(_AWS[:2]), values  # boto3 finds others, such as those of a profile
    missing = litellm.validate_environment(name)["missing_keys"]
    variable = next(iter(missing), f"{provider.upper()}_API_KEY")
    key = credentials.get(variable)
    if key is None and (missing or variable in os.environ):  # a variable that is set but empty is not a key
        raise UserError(f"there is no key for {name!r}: set {variable} in the environment")
    return model, provider, variable, {"api_key": key} if key else {}


async def check_listening(base: str) -> None:
    """Raise ServiceDown if nothing listens at a URL."""
    url = httpx.URL(base)
    try:
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(url.host, url.port or (443 if url.scheme == "https" else 80))
    except (OSError, TimeoutError):
        raise ServiceDown(f"no server answers at {base}: start it, or give another --api_base") from None
    writer.close()
