"""The flags of commands that use a proprietary model (`cobalt.engine.litellm_engine`)."""

from typing import Annotated

from pydantic.dataclasses import dataclass

from cobalt.stage.run import Flag, check_ranges


@dataclass(frozen=True)
class ApiFlags:
    """The model of a provider and how requests are made; names and defaults are the paper's where it has them."""

    model_name: Annotated[str, Flag("model", "--model_name")] = "gpt-5-mini-2025-08-07"
    """The model's name in LiteLLM; with api_base, its name on the server."""
    reasoning_effort: Annotated[str, Flag(None, "-r")] = "medium"
    """Thinking effort of a reasoning model; "default": the parameter is not sent."""
    api_base: str | None = None
    """URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1."""
    openai_api_key: str = ""
    """OpenAI's key. Other users of the machine can see flags: prefer the variable OPENAI_API_KEY."""
    aws_access_key_id: str = ""
    """Key id for Bedrock. Prefer the variable AWS_ACCESS_KEY_ID, as for openai_api_key."""
    aws_secret_access_key: str = ""
    """Secret key for Bedrock. Prefer the variable AWS_SECRET_ACCESS_KEY, as for openai_api_key."""
    aws_region_name: str = ""
    """Region for Bedrock; by default AWS_REGION_NAME, AWS_REGION or that of the AWS profile, else us-west-2."""
    concurrent_requests: int = 32
    """Largest number of requests in flight, over all problems and samples."""
    requests_per_minute: float | None = None
    """Largest number of requests per minute, retries included."""
    spend_limit: float | None = None
    """Maximum cost of all calls of this result, in US dollars, resumed runs included."""
    prompt_price: float | None = None
    """US dollars for a million prompt tokens, if LiteLLM's price is missing or wrong."""
    completion_price: float | None = None
    """US dollars for a million completion tokens, as for prompt_price."""
    request_timeout: float = 600
    """Seconds after which a request without an answer is made again."""
    attempts: int = 8
    """Number of times that a request is made before its failure counts."""

    def check_ranges(self) -> None:
        """Raise UserError if a number is out of its range; the message names the flag."""
        for name in ("concurrent_requests", "requests_per_minute", "spend_limit", "request_timeout", "attempts"):
            check_ranges(self, (name, getattr(self, name) is None or getattr(self, name) > 0, "above 0"))
        for name in ("prompt_price", "completion_price"):
            check_ranges(self, (name, (getattr(self, name) or 0) >= 0, "0 or more"))
