"""How LiteLLM reaches the provider of a model: LiteLLM itself, the provider's name, and the keys and URL of requests.

A mistake that shows without a request is a `UserError` here.
"""

import asyncio
import logging
import os
import warnings
from typing import Any
from urllib.parse import urlsplit

from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.credentials import Credentials
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import ServiceDown, UserError

_NO_KEY = "none"  # for servers without keys, because the OpenAI client requires one
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION_NAME")


def import_litellm() -> Any:
    """LiteLLM, without its messages and with the prices of the installed package, not downloaded ones.

    Raises:
        UserError: it is not installed.
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


def find_provider(litellm: Any, settings: ApiFlags) -> tuple[str, str]:
    """The model's name without its provider, and the provider's name in LiteLLM.

    Raises:
        UserError: LiteLLM knows no provider of the model.
    """
    name = settings.model_name
    if settings.api_base:
        return name, "openai"
    try:
        model, provider, _, _ = litellm.get_llm_provider(name)
    except litellm.BadRequestError:
        raise UserError(
            f"LiteLLM knows no provider of model {name!r}: give its name as PROVIDER/MODEL, or --api_base with the"
            " URL of an OpenAI-compatible server"
        ) from None
    return str(model), str(provider)


def find_access(
    litellm: Any, settings: ApiFlags, provider: str, credentials: Credentials
) -> tuple[str, dict[str, Any]]:
    """The variable that holds the key, and the arguments for LiteLLM.

    Raises:
        UserError: there is no key; the message names the variable.
    """
    if settings.api_base:
        return "OPENAI_API_KEY", {
            "api_base": settings.api_base,
            "api_key": credentials.get("OPENAI_API_KEY") or _NO_KEY,
        }
    if provider.startswith(("bedrock", "sagemaker")):
        return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", _find_aws_access(credentials)
    missing = litellm.validate_environment(settings.model_name)["missing_keys"]
    variable = next(iter(missing), f"{provider.upper()}_API_KEY")
    key = credentials.get(variable)
    if key is None and (missing or variable in os.environ):  # a variable that is set but empty is not a key
        raise UserError(
            f"there is no key for {settings.model_name!r}: set {variable} in the environment, or give --key_file with"
            f" a line {variable}=..."
        )
    return variable, {"api_key": key} if key else {}


def _find_aws_access(credentials: Credentials) -> dict[str, Any]:
    values = {name: credentials.get(name) for name in _AWS}
    try:
        import boto3
    except ImportError:
        raise UserError("boto3 is not installed: run scripts/setup.sh --with api") from None
    session = boto3.Session()
    region = values["AWS_REGION_NAME"] or os.environ.get("AWS_REGION") or session.region_name
    if not region:
        raise UserError("no AWS region is set: set AWS_REGION_NAME in the environment, or give --aws_region_name")
    if bool(values["AWS_ACCESS_KEY_ID"]) != bool(values["AWS_SECRET_ACCESS_KEY"]):
        raise UserError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together: one of them is not set")
    if not values["AWS_ACCESS_KEY_ID"] and session.get_credentials() is None:
        raise UserError(
            "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, give"
            " --key_file, or a profile in AWS_PROFILE"
        )
    return {name.lower(): value for name, value in values.items() if value} | {"aws_region_name": region}


def check_url(base: str) -> None:
    """Raise UserError if `api_base` is not a plain URL of a server."""
    try:
        parts = urlsplit(base)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number, or an unmatched bracket
        valid = False
    if not valid:
        raise UserError(f"api_base is {base!r}: give a URL such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise UserError("api_base must not hold a user, a password or a query: give the key by --key_file")


async def check_listening(url: str) -> None:
    """Raise ServiceDown if nothing listens at a URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        raise ServiceDown(f"no server answers at {url}: start it, or give another --api_base") from None
    writer.close()
