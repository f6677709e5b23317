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
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from cobalt.engine.api_flags import ApiFlags
from cobalt.engine.base import Call, Completion, GenerationSettings, derive_seed
from cobalt.engine.call_log import CallLog, calls_path
from cobalt.engine.provider_access import Credentials, check_listening, find_access, import_litellm, read_credentials
from cobalt.engine.provider_answers import (
    Body,
    ProviderError,
    ProviderFailure,
    error_inside,
    left_of_context,
    read_answer,
    read_body,
    usage_of,
)
from cobalt.episode import Message
from cobalt.episode.chat_template import template_arguments
from cobalt.stage.errors import InfrastructureError, ServiceDown, SpendLimitReached, UserError
from cobalt.stage.retrying import retrying

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 3600.0
"""If a provider asks for a longer pause than this, in seconds, the run ends (and can be resumed)."""

_KEYS = ("openai_api_key", "aws_access_key_id", "aws_secret_access_key", "aws_region_name")
_OF_BAD_ANSWERS = (AttributeError, LookupError, TypeError, ValueError)  # what LiteLLM lets through

_Answer = tuple[Completion, dict[str, Any] | None]  # with the provider's usage; None: nothing was charged


@asynccontextmanager
async def open_engine(
    flags: ApiFlags, result: Path | None, response_format: dict[str, Any] | None = None
) -> AsyncIterator["LiteLLMEngine"]:
    """The engine of a command's flags, with the log of the calls that were paid for `result`."""
    credentials = read_credentials({name.upper(): getattr(flags, name) for name in _KEYS})
    with CallLog(result) as log:
        async with LiteLLMEngine(flags, credentials, log, response_format=response_format) as engine:
            yield engine
        if result is not None and log.spent:
            logger.info("%s: $%.4f spent in all", calls_path(result), log.spent)


class LiteLLMEngine:
    """An engine for one model of one provider; use it as an asynchronous context manager.

    The end of the context waits for requests in flight, because they are paid for, unless the run is interrupted.
    Requests that wait for their turn are not made any more. Everything that can be checked without a request is checked
    when the engine is made.

    Args:
        flags: Model and limits.
        credentials: The keys.
        log: The log of paid answers; None: they are not kept.
        response_format: JSON schema of the answers, for models that support it; None: free text.
        longest_backoff: Longest pause between two attempts, in seconds, unless the provider asks for a longer one.

    Raises:
        UserError: LiteLLM is not installed, the model is unknown, the key is missing, the URL is bad, a number is out
            of range, or there is a spend limit for a model without a known price.
    """

    def __init__(
        self,
        flags: ApiFlags,
        credentials: Credentials,
        log: CallLog | None = None,
        *,
        response_format: Mapping[str, Any] | None = None,
        longest_backoff: float = 60.0,
    ) -> None:
        flags.check_ranges()
        self._litellm = import_litellm()
        self._flags, self._credentials, self._log = flags, credentials, log or CallLog()
        self._schema, self._longest_backoff = response_format, longest_backoff
        self._interval = 60 / flags.requests_per_minute if flags.requests_per_minute else 0.0
        self._next = 0.0  # when another request may start, by the limit or after a pause that the provider asked for
        self._slots = asyncio.Semaphore(flags.concurrent_requests)
        self._ended = False
        self._requests: set[asyncio.Task[Completion]] = set()
        self._reported: frozenset[str] = frozenset()
        self._taken: dict[str, bool] = {}  # by name alone: of a run's parameters only the seed's value changes
        self._model, self._provider, self._key_name, self._access = find_access(self._litellm, flags, credentials)
        if flags.spend_limit is not None and self._cost({}) is None:
            raise UserError(
                f"spend_limit needs a price, and LiteLLM knows none of {flags.model_name!r}: give --prompt_price and"
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

        RequestRefused: the provider refuses the key, the model, the account or a parameter. SpendLimitReached: the
        spend limit is reached.
        """
        samples = [call.sample] if call.sample is not None and settings.n == 1 else range(settings.n)
        calls = [call._replace(sample=sample) for sample in samples]
        return list(await asyncio.gather(*(self._one(conversation, settings, one) for one in calls)))

    async def describe(self) -> Mapping[str, Any]:
        """Model, provider and the settings that decide answers; raises ServiceDown: nothing listens at `api_base`."""
        if self._flags.api_base:
            await check_listening(self._flags.api_base)
        decisive = {
            "model_name": self._flags.model_name,
            "reasoning_effort": self._flags.reasoning_effort,
            "api_base": self._flags.api_base,
            "response_format": self._schema,
            "provider": self._provider,
        }
        return {key: value for key, value in decisive.items() if value is not None}

    @property
    def structured(self) -> bool:
        """Whether the model's answers follow the `response_format`."""
        return self._response_format() is not None

    def parameters(self, settings: GenerationSettings) -> dict[str, Any]:
        """The parameters that are sent; one that the provider does not accept is left out, and reported once."""
        switch = template_arguments(settings.chat_template_thinking)
        effort = self._flags.reasoning_effort
        wanted: dict[str, Any] = {
            "temperature": settings.temperature,
            # 1.0 is every provider's default, and some refuse top_p together with a temperature. A server at api_base
            # may have another default, that of the model.
            "top_p": None if settings.top_p == 1.0 and not self._flags.api_base else settings.top_p,
            "max_tokens": settings.max_tokens,
            "seed": settings.seed,
            "reasoning_effort": None if effort == "default" else effort,
            "response_format": self._response_format(),
            "extra_body": {"chat_template_kwargs": switch} if switch else None,
        }
        wanted = {name: value for name, value in wanted.items() if value is not None}
        taken = {name: value for name, value in wanted.items() if self._takes(name, value)}
        dropped = frozenset(name for name in wanted.keys() - taken.keys() if (name, wanted[name]) != ("top_p", 1.0))
        if dropped - self._reported:
            self._reported |= dropped
            values = ", ".join(f"{name}={wanted[name]}" for name in sorted(dropped))
            logger.warning("%s does not take %s: not sent", self._flags.model_name, values)
        return taken

    async def _one(self, conversation: Sequence[Message], settings: GenerationSettings, call: Call) -> Completion:
        """One completion: from the log, or from the provider."""
        if settings.seed is not None:
            settings = settings.model_copy(update={"seed": derive_seed(settings.seed, call)})
        parameters = self.parameters(settings)
        content = [self._provider, self._flags.api_base, self._model, parameters, list(conversation), list(call)]
        key = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
        if known := self._log.find(key):
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
        backoff = self._longest_backoff
        send = retrying(self._flags.attempts, first_pause=0.5, longest_pause=backoff, retry=ProviderFailure)
        answer: _Answer = await send(self._in_turn, conversation, parameters)
        if answer[0].finish_reason == "prompt_too_long":
            # As in the project's own engine, the answer may take what the conversation leaves of the context.
            rest = {name: value for name, value in parameters.items() if name != "max_tokens"}
            answer = await send(self._in_turn, conversation, rest | left_of_context(answer[0].message))
        completion, usage = answer
        if usage is None:
            return completion
        if completion.cost is None and self._flags.spend_limit is not None:
            raise SpendLimitReached("the provider reported no usage, so that the spend limit cannot be held")
        await self._log.append(key, completion, usage)
        return completion

    async def _in_turn(self, conversation: list[Message], parameters: Mapping[str, Any]) -> _Answer:
        """The answer to a request that is made when its turn has come, and within the limit on spending."""
        async with self._slots:
            if self._ended:
                raise InfrastructureError("the run ended before this request was made")
            while (left := self._next - time.monotonic()) > 0:  # noqa: ASYNC110 - another request may move it
                await asyncio.sleep(left)
            self._next = time.monotonic() + self._interval
            limit, spent = self._flags.spend_limit, self._log.spent
            if limit is not None and spent >= limit:
                raise SpendLimitReached(
                    f"the spend limit of ${limit:g} is reached (${spent:.4f} spent): what is finished is kept;"
                    " run the same command with a higher --spend_limit to go on"
                )
            return await self._send(conversation, parameters)

    async def _send(self, conversation: list[Message], parameters: Mapping[str, Any]) -> _Answer:
        response, body = await self._response(conversation, parameters)
        if (inside := error_inside(body)) is not None:
            return self._refused(inside), None
        try:
            if not isinstance(response, Exception):
                return self._completion(response.model_dump(), body)
            if "choices" not in body:
                raise response
            return self._completion({}, body)
        except Exception as error:
            if hasattr(error, "status_code"):
                return self._refused(ProviderError.raised(error)), None
            if not isinstance(error, _OF_BAD_ANSWERS):
                raise
            raise ProviderFailure(f"the provider's answer is malformed ({self._one_line(str(error))})") from None

    async def _response(self, conversation: list[Message], parameters: Mapping[str, Any]) -> tuple[Any, Body]:
        """The response as LiteLLM reads it, or what LiteLLM raised, and the body as the provider sent it."""
        timeout = self._flags.request_timeout
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

    def _refused(self, error: ProviderError) -> Completion:
        """The completion that stands for a request without an answer, for which nothing is charged; or raises.

        Those that end the run are RequestRefused and ServiceDown, and a ProviderFailure is worth another attempt.
        """
        end, said = error.end
        reason = self._one_line(error.message)
        message = said.format(key=self._key_name, model=self._flags.model_name, status=error.status, reason=reason)
        if isinstance(end, str):
            return Completion(text="", finish_reason=end, message=message)
        if end is ProviderFailure and error.pause > LONGEST_PAUSE:
            raise ServiceDown(f"the provider asks for a pause of {error.pause:.0f} s: run the same command again then")
        if end is ProviderFailure:
            self._next = max(self._next, time.monotonic() + error.pause)
        raise end(message)

    def _completion(self, read: Body, body: Body) -> _Answer:
        """The completion and the usage of a response, as the provider sent it and as LiteLLM reads it.

        The reading is {} if LiteLLM rejects the response. It makes some providers' calls of tools into the JSON that
        was asked for.
        """
        as_sent = not read or ("choices" in body and self._schema is None)
        text, reason, message = read_answer(body if as_sent else read, read)
        said = read or body
        usage = usage_of(said)
        tokens = {name: int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")}
        cost = self._cost(usage, said.get("model")) if usage else None
        message = self._credentials.scrub(message)
        return Completion(text=text, finish_reason=reason, cost=cost, message=message, **tokens), usage

    def _cost(self, usage: Mapping[str, Any], answered: Any = None) -> float | None:
        """The price of an answer in US dollars; None if no price is known.

        `answered` is the model that the answer names, which has the price where deployments have names of their own.
        """
        prices = {"prompt_tokens": self._flags.prompt_price, "completion_tokens": self._flags.completion_price}
        if any(price is not None for price in prices.values()):
            return sum((usage.get(name) or 0) * (price or 0.0) for name, price in prices.items()) / 1e6
        for model in filter(None, (self._model, answered)):
            with suppress(Exception):  # LiteLLM raises plain ones if it knows no price
                counts = self._litellm.Usage(**usage)
                return float(
                    sum(self._litellm.cost_per_token(model, custom_llm_provider=self._provider, usage_object=counts))
                )
        return None

    def _takes(self, name: str, value: Any) -> bool:
        """Whether LiteLLM can send a parameter to this provider."""
        if name == "extra_body":  # for servers that render a chat template; providers do not expose theirs
            return self._flags.api_base is not None
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
        if self._schema is None or not self._litellm.supports_response_schema(self._model, self._provider):
            return None
        return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": self._schema}}

    def _one_line(self, text: str) -> str:
        """A provider's text in one line, without keys, and without the traceback that LiteLLM puts into some."""
        text = text.partition("Traceback (most recent call last)")[0]
        return " ".join(self._credentials.scrub(text).split())[:500]
