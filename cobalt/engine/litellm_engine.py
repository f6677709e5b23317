"""Proprietary models through LiteLLM's asynchronous API: OpenAI, Bedrock and others, or an OpenAI-compatible URL.

Every completion is a request of its own, because many providers have no parameter `n`. A request is retried when the
provider fails, and its answer is written to the run's call log as soon as it is paid for. LiteLLM is imported when an
engine is made. Its prices are those of the installed package; nothing is downloaded. Reasoning that a provider returns
apart from the answer is discarded.
"""

import asyncio
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from cobalt.engine.base import Call, Completion, GenerationSettings, derive_seed
from cobalt.engine.call_log import CallLog
from cobalt.engine.credentials import Credentials
from cobalt.engine.pacing import Pacer, retry_after
from cobalt.engine.provider_errors import Cause, ProviderError
from cobalt.engine.raw_answers import Body, error_inside, is_cut, read_body, text_of, with_plain_content
from cobalt.episode import Message
from cobalt.episode.chat_template import template_arguments
from cobalt.episode.trajectory import FinishReason
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import (
    CobaltError,
    InfrastructureError,
    RequestRefused,
    ServiceDown,
    SpendLimitReached,
    UserError,
)
from cobalt.stage.retrying import retrying

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 3600.0
"""If a provider asks for a longer pause than this, in seconds, the run ends (and can be resumed)."""

_NO_KEY = "none"  # for servers without keys, because the OpenAI client requires one
_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION_NAME")


class LiteLLMSettings(BaseModel):
    """The model, and how requests are made.

    Attributes:
        model_name: The model's name in LiteLLM (`gpt-5-mini-2025-08-07`, `bedrock/...`), or on the server `api_base`.
        reasoning_effort: Sent to models that accept it; "default": not sent.
        api_base: URL of an OpenAI-compatible server, with its `/v1`; None: the provider's own URL.
        concurrent_requests: Largest number of requests in flight, over all problems and samples.
        requests_per_minute: Largest number of requests per minute; None: no limit.
        spend_limit: Most that all calls of a result file may cost, in US dollars; None: no limit. It is checked before
            each request; requests in flight when it is reached are finished and paid for.
        prompt_price: US dollars for a million prompt tokens, if LiteLLM's price is missing or wrong.
        completion_price: The same for completion tokens.
        request_timeout: Seconds after which a request without an answer counts as failed.
        attempts: How many times a request is made before its failure is raised.
        longest_backoff: Longest pause between two attempts, in seconds, unless the provider asks for a longer one.
        response_format: JSON schema of the answers, for models that support it; None: free text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_name: str = Field(min_length=1)
    reasoning_effort: str = "medium"
    api_base: str | None = None
    concurrent_requests: int = Field(32, ge=1)
    requests_per_minute: float | None = Field(None, gt=0)
    spend_limit: float | None = Field(None, gt=0)
    prompt_price: float | None = Field(None, ge=0)
    completion_price: float | None = Field(None, ge=0)
    request_timeout: float = Field(600, gt=0)
    attempts: int = Field(8, ge=1)
    longest_backoff: float = Field(60, ge=0)
    response_format: dict[str, Any] | None = None


class LiteLLMEngine:
    """An engine for one model of one provider; use it as an asynchronous context manager.

    The end of the context waits for requests in flight, because they are paid for, unless the run is interrupted.
    Requests that wait for their turn are not made any more.
    """

    def __init__(self, settings: LiteLLMSettings, credentials: Credentials, log: CallLog | None = None) -> None:
        """Check everything that can be checked without a request.

        Args:
            settings: Model and limits.
            credentials: The keys.
            log: The log of paid answers; None: no log.

        Raises:
            UserError: LiteLLM is not installed, the model is unknown, the key is missing, the URL is bad, or there is a
                spend limit for a model without a known price.
        """
        _check_url(settings.api_base)
        self._litellm = _import_litellm()
        self._settings = settings
        self._credentials = credentials
        self._log = log
        self._spent = 0.0  # used without a log only
        self._pacer = Pacer(settings.requests_per_minute)
        self._places = asyncio.Semaphore(settings.concurrent_requests)
        self._ended = False
        self._requests: set[asyncio.Task[Completion]] = set()
        self._reported: frozenset[str] = frozenset()
        self._taken: dict[str, bool] = {}  # by name alone: of a run's parameters only the seed's value changes
        self._model, self._provider = self._find_provider()
        self._key_name, self._access = self._find_access()
        if settings.spend_limit is not None and not self._price_is_known():
            raise UserError(
                f"spend_limit needs a price, and LiteLLM knows none of {settings.model_name!r}: give --prompt_price and"
                " --completion_price, in US dollars for a million tokens"
            )

    async def __aenter__(self) -> Self:
        self._ended = False
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self._ended = True
        if kind is not None and not issubclass(kind, Exception):
            for request in self._requests:
                request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def generate(
        self, conversation: Sequence[Message], settings: GenerationSettings, call: Call
    ) -> list[Completion]:
        """Draw completions, each by a request of its own; see `Engine.generate`.

        Raises:
            RequestRefused: the provider refuses the key, the model or the account.
            SpendLimitReached: the spend limit is reached.
            InfrastructureError: the provider failed at every attempt.
        """
        samples = [call.sample] if call.sample is not None and settings.n == 1 else list(range(settings.n))
        return list(
            await asyncio.gather(*(self._one(conversation, settings, call._replace(sample=i)) for i in samples))
        )

    async def describe(self) -> Mapping[str, Any]:
        """Model, provider and the settings that decide answers; see `Engine.describe`.

        Raises:
            ServiceDown: nothing listens at `api_base`.
        """
        if self._settings.api_base:
            await _check_listening(self._settings.api_base)
        decisive = self._settings.model_dump(include={"model_name", "reasoning_effort", "api_base", "response_format"})
        return {key: value for key, value in decisive.items() if value is not None} | {"provider": self._provider}

    @property
    def structured(self) -> bool:
        """Whether the model's answers follow the settings' `response_format`."""
        return self._response_format() is not None

    @property
    def spent(self) -> float:
        """US dollars spent so far; with a log, those of earlier runs of the same result are included."""
        return self._spent if self._log is None else self._log.spent

    def parameters(self, settings: GenerationSettings) -> dict[str, Any]:
        """The parameters that are sent with the conversation.

        A parameter that the provider does not accept is left out, and reported once.
        """
        switch = template_arguments(settings.chat_template_thinking)
        wanted: dict[str, Any] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_tokens,
            "seed": settings.seed,
            "reasoning_effort": None
            if self._settings.reasoning_effort == "default"
            else self._settings.reasoning_effort,
            "response_format": self._response_format(),
            "extra_body": {"chat_template_kwargs": switch} if switch else None,
        }
        if settings.top_p == 1.0 and not self._settings.api_base:
            # 1.0 is every provider's default, and some refuse top_p together with a temperature. A server at api_base
            # may have another default, that of the model.
            del wanted["top_p"]
        wanted = {name: value for name, value in wanted.items() if value is not None}
        taken = {name: value for name, value in wanted.items() if self._takes(name, value)}
        dropped = frozenset(name for name in wanted.keys() - taken.keys() if (name, wanted[name]) != ("top_p", 1.0))
        if dropped - self._reported:
            self._reported |= dropped
            values = ", ".join(f"{name}={wanted[name]}" for name in sorted(dropped))
            logger.warning("%s does not take %s: not sent", self._settings.model_name, values)
        return taken

    async def _one(self, conversation: Sequence[Message], settings: GenerationSettings, call: Call) -> Completion:
        """One completion: from the log, or from the provider."""
        if settings.seed is not None:
            settings = settings.model_copy(update={"seed": derive_seed(settings.seed, call)})
        parameters = self.parameters(settings)
        key = self._key(conversation, parameters, call)
        known = self._log.find(key) if self._log else None
        if known is not None:
            return known
        # A task of its own, so that its answer still arrives and is logged if the run ends.
        request = asyncio.create_task(self._request(list(conversation), parameters, key))
        self._requests.add(request)
        request.add_done_callback(self._forget)
        return await asyncio.shield(request)

    def _forget(self, request: asyncio.Task[Completion]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            request.exception()  # mark the exception as retrieved, because no caller may be waiting for it any more

    async def _request(self, conversation: list[Message], parameters: dict[str, Any], key: str) -> Completion:
        attempts = retrying(
            self._settings.attempts,
            first_pause=0.5,
            longest_pause=self._settings.longest_backoff,
            retry=lambda error: isinstance(error, ProviderFailure),
        )
        completion: Completion
        usage: dict[str, Any] | None
        completion, usage = await attempts(self._attempt, conversation, parameters)
        if usage is None:
            return completion  # nothing was charged
        if completion.cost is None and self._settings.spend_limit is not None:
            raise SpendLimitReached("the provider reported no usage, so that the spend limit cannot be held")
        if self._log is not None:
            await self._log.append(key, completion, usage)
        else:
            self._spent += completion.cost or 0.0
        return completion

    async def _attempt(
        self, conversation: list[Message], parameters: dict[str, Any]
    ) -> tuple[Completion, dict[str, Any] | None]:
        async with self._places:
            if self._ended:
                raise InfrastructureError("the run ended before this request was made")
            await self._pacer.wait()
            try:
                return await self._send(conversation, parameters)
            except TooManyTokens as error:
                said, shorter = str(error), error.shorter
            if shorter is not None:
                await self._pacer.wait()
                try:
                    return await self._send(conversation, shorter)
                except TooManyTokens as error:
                    said = str(error)
            raise RequestRefused(
                f"{self._settings.model_name!r} does not take --max_tokens {parameters.get('max_tokens')}: give a"
                f" number that leaves room for the prompts ({said})"
            )

    async def _send(
        self, conversation: list[Message], parameters: Mapping[str, Any]
    ) -> tuple[Completion, dict[str, Any] | None]:
        limit = self._settings.spend_limit
        if limit is not None and self.spent >= limit:
            raise SpendLimitReached(
                f"the spend limit of ${limit:g} is reached (${self.spent:.4f} spent): what is finished is kept;"
                " run the same command with a higher --spend_limit to go on"
            )
        timeout = self._settings.request_timeout
        originals: list[object] = []

        def listen(details: Mapping[str, Any]) -> None:
            if details.get("log_event_type") == "post_api_call":
                originals.append(details.get("original_response"))

        failure: Exception | None = None
        response = None
        try:
            async with asyncio.timeout(timeout):
                response = await self._litellm.acompletion(
                    model=self._model,
                    custom_llm_provider=self._provider,
                    messages=conversation,
                    timeout=timeout,
                    max_retries=0,
                    num_retries=0,
                    drop_params=False,
                    logger_fn=listen,
                    **self._access,
                    **parameters,
                )
        except TimeoutError:
            raise ProviderFailure(f"the provider gave no answer within {timeout:g} s") from None
        except Exception as error:  # noqa: BLE001 - sorted below, together with what the provider sent
            failure = error
        body = read_body(originals[-1] if originals else None)
        inside = error_inside(body)
        if inside is not None:
            said = self._one_line(str(inside.get("message") or inside) if isinstance(inside, Mapping) else str(inside))
            return self._refused(ProviderError.inside(inside), said, {}, parameters), None
        if failure is not None and (plain := with_plain_content(body)) is not None:
            try:
                response = self._litellm.utils.convert_to_model_response_object(plain, self._litellm.ModelResponse())
            except Exception as error:  # noqa: BLE001 - plain exceptions for whatever else is wrong with the answer
                raise ProviderFailure(f"the provider's answer is malformed ({self._say(error)})") from None
        elif isinstance(failure, AttributeError | KeyError | TypeError | ValueError):  # let through of a bad answer
            raise ProviderFailure(f"the provider's answer is malformed ({self._say(failure)})")
        elif failure is not None:
            if not hasattr(failure, "status_code"):
                raise failure
            return self._refused(self._read(failure), self._say(failure), _headers(failure), parameters), None
        return self._completion(response, body)

    def _read(self, error: Exception) -> ProviderError:
        return ProviderError.raised(
            error,
            refused_input=isinstance(error, self._litellm.ContentPolicyViolationError),
            overlong=isinstance(error, self._litellm.ContextWindowExceededError),
        )

    def _refused(
        self, error: ProviderError, said: str, headers: Mapping[str, str], parameters: Mapping[str, Any]
    ) -> Completion:
        """The completion that stands for a request without an answer, for which nothing is charged.

        Raises:
            RequestRefused: every request of this run would be refused.
            ServiceDown: the provider asks for a long pause.
            TooManyTokens: there is no room for so many tokens.
            ProviderFailure: another attempt may succeed.
            InfrastructureError: this request is refused.
        """
        name = self._settings.model_name
        cause, room = error.cause(parameters.get("max_tokens"))
        match cause:
            case Cause.ACCOUNT:
                raise RequestRefused(f"the account of {self._key_name} has no quota left or is closed: {said}")
            case Cause.KEY:
                raise RequestRefused(f"the provider refused the key in {self._key_name} for {name!r}: {said}")
            case Cause.MODEL:
                raise RequestRefused(f"the provider has no model {name!r}: {said}")
            case Cause.MAX_TOKENS:
                raise TooManyTokens(said)
            case Cause.ROOM:
                # As the project's own engine does: the answer may take what the conversation leaves. A server that does
                # not say how much that is takes all of it by default.
                rest = {key: value for key, value in parameters.items() if key != "max_tokens"}
                raise TooManyTokens(said, rest if room is None else rest | {"max_tokens": room})
            case Cause.INPUT:
                return Completion(text="", finish_reason="error", message=said)
            case Cause.PROMPT:
                return Completion(text="", finish_reason="prompt_too_long", message=said)
            case Cause.TRANSIENT:
                pause = retry_after(headers)
                if pause is not None and pause > LONGEST_PAUSE:
                    raise ServiceDown(
                        f"the provider asks for a pause of {pause:.0f} s: run the same command again then"
                    )
                self._pacer.pause(pause or 0.0)
                raise ProviderFailure(f"the provider failed ({error.status}): {said}")
        raise InfrastructureError(f"the provider refused the request ({error.status}): {said}")

    def _completion(self, response: Any, body: Body) -> tuple[Completion, dict[str, Any]]:
        """Read a response; a response without text becomes a completion with a message.

        Args:
            response: As LiteLLM reads it.
            body: As the provider sent it; {} if that is not known.
        """
        usage = _plain(getattr(response, "usage", None))
        prompt_tokens = int(usage.get("prompt_tokens") or 0)
        completion_tokens = int(usage.get("completion_tokens") or 0)
        text, reason, message = "", "error", "the provider sent no choice"
        if response.choices:
            choice = response.choices[0]
            content = choice.message.content
            readings = [text_of(body), content if isinstance(content, str) else None]
            if self._settings.response_format is not None:
                readings.reverse()  # LiteLLM makes some providers' calls of tools into the JSON that was asked for
            text = next(filter(None, readings), "")
            reason = "length" if choice.finish_reason == "length" or is_cut(body) else "stop"
            message = ""
            if choice.finish_reason == "content_filter":
                reason, message = "error", "the provider's content filter ended the answer"
            elif not text:
                fields = getattr(choice.message, "provider_specific_fields", None) or {}
                refusal = fields.get("refusal")
                message = f"the model refused: {refusal}" if refusal else "the provider sent no text"
        finish_reason: FinishReason = reason  # type: ignore[assignment]
        return (
            Completion(
                text=text,
                finish_reason=finish_reason,
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                cost=self._cost(response, prompt_tokens, completion_tokens) if usage else None,
                message=self._credentials.scrub(message),
            ),
            usage,
        )

    def _cost(self, response: Any, prompt_tokens: int, completion_tokens: int) -> float | None:
        """The price of a response in US dollars; None if no price is known."""
        settings = self._settings
        if settings.prompt_price is not None or settings.completion_price is not None:
            prices = (settings.prompt_price or 0.0, settings.completion_price or 0.0)
            return (prompt_tokens * prices[0] + completion_tokens * prices[1]) / 1e6
        try:
            cost: float = self._litellm.completion_cost(
                completion_response=response, model=self._model, custom_llm_provider=self._provider
            )
        except Exception:  # noqa: BLE001 - LiteLLM raises plain exceptions if it knows no price
            return None
        return cost if cost > 0 or self._price_is_known() else None

    def _price_is_known(self) -> bool:
        if self._settings.prompt_price is not None or self._settings.completion_price is not None:
            return True
        try:
            self._litellm.cost_per_token(model=self._model, custom_llm_provider=self._provider, prompt_tokens=1)
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def _takes(self, name: str, value: Any) -> bool:
        """Whether LiteLLM can send a parameter to this provider."""
        if name == "extra_body":  # for servers that render a chat template; providers do not expose theirs
            return self._settings.api_base is not None
        if name in self._taken:
            return self._taken[name]
        get = self._litellm.utils.get_optional_params
        options = {"model": self._model, "custom_llm_provider": self._provider, "drop_params": False}
        try:
            # LiteLLM accepts some parameters and does not send them, so compare with what it sends without them.
            self._taken[name] = bool(get(**options, **{name: value}) != get(**options))
        except self._litellm.UnsupportedParamsError:
            self._taken[name] = False
        return self._taken[name]

    def _response_format(self) -> dict[str, Any] | None:
        schema = self._settings.response_format
        if schema is None or not self._litellm.supports_response_schema(self._model, self._provider):
            return None
        return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}

    def _find_provider(self) -> tuple[str, str]:
        base, name = self._settings.api_base, self._settings.model_name
        if base:
            return name, "openai"
        try:
            model, provider, _, _ = self._litellm.get_llm_provider(name)
        except self._litellm.BadRequestError:
            raise UserError(
                f"LiteLLM knows no provider of model {name!r}: give its name as PROVIDER/MODEL, or --api_base with the"
                " URL of an OpenAI-compatible server"
            ) from None
        return str(model), str(provider)

    def _find_access(self) -> tuple[str, dict[str, Any]]:
        """The variable that holds the key, and the arguments for LiteLLM.

        Raises:
            UserError: there is no key; the message names the variable.
        """
        get = self._credentials.get
        if self._settings.api_base:
            access = {"api_base": self._settings.api_base, "api_key": get("OPENAI_API_KEY") or _NO_KEY}
            return "OPENAI_API_KEY", access
        if self._provider.startswith(("bedrock", "sagemaker")):
            return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", self._find_aws_access()
        missing = self._litellm.validate_environment(self._settings.model_name)["missing_keys"]
        variable = next(iter(missing), f"{self._provider.upper()}_API_KEY")
        key = get(variable)
        if key is None and (missing or variable in os.environ):  # a variable that is set but empty is not a key
            raise UserError(
                f"there is no key for {self._settings.model_name!r}: set {variable} in the environment, or give"
                " --key_file with a line " + variable + "=..."
            )
        return variable, {"api_key": key} if key else {}

    def _find_aws_access(self) -> dict[str, Any]:
        values = {name: self._credentials.get(name) for name in _AWS}
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
        access = {name.lower(): value for name, value in values.items() if value}
        return access | {"aws_region_name": region}

    def _key(self, conversation: Sequence[Message], parameters: Mapping[str, Any], call: Call) -> str:
        content = [self._provider, self._settings.api_base, self._model, parameters, list(conversation), list(call)]
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _say(self, error: Exception) -> str:
        """An error's text, without the traceback that LiteLLM puts into some."""
        return self._one_line(str(error).partition("Traceback (most recent call last)")[0])

    def _one_line(self, text: str) -> str:
        """A provider's text in one line, without keys."""
        return " ".join(self._credentials.scrub(text).split())[:500]


class ProviderFailure(InfrastructureError):
    """A failure of the provider that may not occur at another attempt."""


class TooManyTokens(CobaltError):
    """The model has no room for `max_tokens`; the parameters `shorter` fit, if there are such."""

    def __init__(self, said: str, shorter: Mapping[str, Any] | None = None) -> None:
        super().__init__(said)
        self.shorter = shorter


def _check_url(base: str | None) -> None:
    """Raise if `api_base` is not a plain URL of a server, before anything heavy is imported."""
    if base is None:
        return
    try:
        parts = urlsplit(base)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is not a number, or an unmatched bracket
        valid = False
    if not valid:
        raise UserError(f"api_base is {base!r}: give a URL such as http://127.0.0.1:8000/v1")
    if parts.username or parts.password or parts.query:
        raise UserError("api_base must not hold a user, a password or a query: give the key by --key_file")


def _import_litellm() -> Any:
    # LiteLLM would otherwise download its table of prices when it is imported.
    local_prices = os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        with environment_variables(LITELLM_LOCAL_MODEL_COST_MAP=local_prices):
            import litellm
    except ImportError:
        raise UserError("LiteLLM is not installed: run scripts/setup.sh --with api") from None
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # LiteLLM's own messages repeat requests; this module reports failures to the user.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Of an answer whose content is a list of parts, which this module reads by itself.
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
    return litellm


async def _check_listening(url: str) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        raise ServiceDown(f"no server answers at {url}: start it, or give another --api_base") from None
    writer.close()


def _headers(error: Exception) -> Mapping[str, str]:
    """The headers of the response that an error of LiteLLM stands for."""
    response = getattr(error, "response", None)
    return getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}


def _plain(usage: Any) -> dict[str, Any]:
    """A provider's usage as JSON-able values, without those that are None; {} if there is no usage."""
    if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
        return {}  # LiteLLM reports zeros if a provider reports nothing
    content = usage if isinstance(usage, dict) else usage.model_dump()
    return {name: value for name, value in json.loads(json.dumps(content, default=str)).items() if value is not None}
