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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.base import Call, Completion, GenerationSettings, derive_seed
from cobalt.engine.call_log import CallLog
from cobalt.engine.credentials import Credentials
from cobalt.engine.pacing import Pacer, retry_after
from cobalt.engine.provider_access import check_listening, check_url, find_access, find_provider, import_litellm
from cobalt.engine.provider_errors import Cause, ProviderError, ProviderFailure, TooManyTokens, headers_of
from cobalt.engine.raw_answers import Body, error_inside, read_answer, read_body, usage_of, with_plain_content
from cobalt.episode import Message
from cobalt.episode.chat_template import template_arguments
from cobalt.stage.errors import InfrastructureError, RequestRefused, ServiceDown, SpendLimitReached, UserError
from cobalt.stage.retrying import retrying

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 3600.0
"""If a provider asks for a longer pause than this, in seconds, the run ends (and can be resumed)."""

_Answer = tuple[Completion, dict[str, Any] | None]  # with the provider's usage; None: nothing was charged
_OF_BAD_ANSWERS = (AttributeError, KeyError, TypeError, ValueError)  # what LiteLLM lets through


@dataclass(frozen=True)
class LiteLLMSettings(ApiFlags):
    """The flags, and what code sets beside them."""

    response_format: Mapping[str, Any] | None = None
    """JSON schema of the answers, for models that support it; None: free text."""
    longest_backoff: float = 60.0
    """Longest pause between two attempts, in seconds, unless the provider asks for a longer one."""


class LiteLLMEngine:
    """An engine for one model of one provider; use it as an asynchronous context manager.

    The end of the context waits for requests in flight, because they are paid for, unless the run is interrupted.
    Requests that wait for their turn are not made any more.
    """

    def __init__(
        self,
        settings: LiteLLMSettings,
        credentials: Credentials,
        log: CallLog | None = None,
    ) -> None:
        """Check everything that can be checked without a request.

        Args:
            settings: Model and limits.
            credentials: The keys.
            log: The log of paid answers; None: no log.

        Raises:
            UserError: LiteLLM is not installed, the model is unknown, the key is missing, the URL is bad, a number is
                out of range, or there is a spend limit for a model without a known price.
        """
        if settings.api_base is not None:
            check_url(settings.api_base)
        settings.check_ranges()
        self._litellm = import_litellm()
        self._settings = settings
        self._credentials = credentials
        self._log = log
        self._spent = 0.0  # used without a log only
        self._pacer = Pacer(settings.requests_per_minute)
        self._slots = asyncio.Semaphore(settings.concurrent_requests)
        self._ended = False
        self._requests: set[asyncio.Task[Completion]] = set()
        self._reported: frozenset[str] = frozenset()
        self._taken: dict[str, bool] = {}  # by name alone: of a run's parameters only the seed's value changes
        self._model, self._provider = find_provider(self._litellm, settings)
        self._key_name, self._access = find_access(self._litellm, settings, self._provider, credentials)
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
        samples = [call.sample] if call.sample is not None and settings.n == 1 else range(settings.n)
        calls = [call._replace(sample=sample) for sample in samples]
        return list(await asyncio.gather(*(self._one(conversation, settings, one) for one in calls)))

    async def describe(self) -> Mapping[str, Any]:
        """Model, provider and the settings that decide answers; see `Engine.describe`.

        Raises:
            ServiceDown: nothing listens at `api_base`.
        """
        settings = self._settings
        if settings.api_base:
            await check_listening(settings.api_base)
        decisive = {
            "model_name": settings.model_name,
            "reasoning_effort": settings.reasoning_effort,
            "api_base": settings.api_base,
            "response_format": self._settings.response_format,
            "provider": self._provider,
        }
        return {key: value for key, value in decisive.items() if value is not None}

    @property
    def structured(self) -> bool:
        """Whether the model's answers follow the `response_format`."""
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
        effort = self._settings.reasoning_effort
        wanted: dict[str, Any] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "max_tokens": settings.max_tokens,
            "seed": settings.seed,
            "reasoning_effort": None if effort == "default" else effort,
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
        answer: _Answer = await attempts(self._attempt, conversation, parameters)
        completion, usage = answer
        if usage is None:
            return completion  # nothing was charged
        if completion.cost is None and self._settings.spend_limit is not None:
            raise SpendLimitReached("the provider reported no usage, so that the spend limit cannot be held")
        if self._log is not None:
            await self._log.append(key, completion, usage)
        else:
            self._spent += completion.cost or 0.0
        return completion

    async def _attempt(self, conversation: list[Message], parameters: dict[str, Any]) -> _Answer:
        async with self._slots:
            if self._ended:
                raise InfrastructureError("the run ended before this request was made")
            try:
                try:
                    return await self._send(conversation, parameters)
                except TooManyTokens as error:
                    if error.shorter is None:
                        raise
                    return await self._send(conversation, error.shorter)
            except TooManyTokens as error:
                raise RequestRefused(
                    f"{self._settings.model_name!r} does not take --max_tokens {parameters.get('max_tokens')}: give a"
                    f" number that leaves room for the prompts ({error})"
                ) from None

    async def _send(self, conversation: list[Message], parameters: Mapping[str, Any]) -> _Answer:
        await self._pacer.wait()
        limit = self._settings.spend_limit
        if limit is not None and self.spent >= limit:
            raise SpendLimitReached(
                f"the spend limit of ${limit:g} is reached (${self.spent:.4f} spent): what is finished is kept;"
                " run the same command with a higher --spend_limit to go on"
            )
        response, body = await self._response(conversation, parameters)
        if (inside := error_inside(body)) is not None:
            message = str(inside.get("message") or inside) if isinstance(inside, Mapping) else str(inside)
            return self._refused(ProviderError.inside(inside), message, {}, parameters), None
        if not isinstance(response, Exception):
            return self._completion(response, body)
        if (plain := with_plain_content(body)) is not None:
            try:
                response = self._litellm.utils.convert_to_model_response_object(plain, self._litellm.ModelResponse())
            except Exception as error:  # noqa: BLE001 - plain exceptions for whatever else is wrong with the answer
                response = error
            else:
                return self._completion(response, body)
        elif hasattr(response, "status_code"):
            reported = ProviderError.raised(response)
            return self._refused(reported, str(response), headers_of(response), parameters), None
        elif not isinstance(response, _OF_BAD_ANSWERS):
            raise response
        raise ProviderFailure(f"the provider's answer is malformed ({self._one_line(str(response))})")

    async def _response(self, conversation: list[Message], parameters: Mapping[str, Any]) -> tuple[Any, Body]:
        """The response as LiteLLM reads it, or what LiteLLM raised, and the body as the provider sent it."""
        timeout = self._settings.request_timeout
        originals: list[object] = []

        def listen(details: Mapping[str, Any]) -> None:
            if details.get("log_event_type") == "post_api_call":
                originals.append(details.get("original_response"))

        response: Any
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
        except Exception as error:  # noqa: BLE001 - sorted by the caller, together with what the provider sent
            response = error
        return response, read_body(originals[-1] if originals else None)

    def _refused(
        self, error: ProviderError, message: str, headers: Mapping[str, str], parameters: Mapping[str, Any]
    ) -> Completion:
        """The completion that stands for a request without an answer, for which nothing is charged; or raises.

        Those that end the run are RequestRefused and ServiceDown, and a ProviderFailure is worth another attempt.
        """
        name, said = self._settings.model_name, self._one_line(message)
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
        """The completion and the usage of a response, as LiteLLM reads it and as the provider sent it."""
        usage = usage_of(response)
        prompt_tokens = int(usage.get("prompt_tokens") or 0)
        completion_tokens = int(usage.get("completion_tokens") or 0)
        # LiteLLM makes some providers' calls of tools into the JSON that was asked for.
        text, reason, message = read_answer(response, body, as_sent=self._settings.response_format is None)
        completion = Completion(
            text=text,
            finish_reason=reason,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=self._cost(response, prompt_tokens, completion_tokens) if usage else None,
            message=self._credentials.scrub(message),
        )
        return completion, usage

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

    def _key(self, conversation: Sequence[Message], parameters: Mapping[str, Any], call: Call) -> str:
        content = [self._provider, self._settings.api_base, self._model, parameters, list(conversation), list(call)]
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _one_line(self, text: str) -> str:
        """A provider's text in one line, without keys, and without the traceback that LiteLLM puts into some."""
        text = text.partition("Traceback (most recent call last)")[0]
        return " ".join(self._credentials.scrub(text).split())[:500]
