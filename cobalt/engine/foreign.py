"""An engine that is not this project's: a server of OpenAI's chat completions, such as `vllm serve`.

Its completions are those of the engine in this process, as far as a server's answers allow it. So every field of
sampling is sent, special tokens are asked for, and each sample is a request of its own, with its own seed. With the
model's tokenizer, `<think>` is put back where the chat template opens it, and a turn ends where the template ends it.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from cobalt.engine.base import Completion, GenerationSettings
from cobalt.engine.vllm_engine import without_end
from cobalt.episode import Message
from cobalt.episode.chat_template import end_of_turn, head_of_responses, template_arguments
from cobalt.episode.thinking import CLOSE, OPEN
from cobalt.episode.token_count import load_tokenizer
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.servers import Servers, encode, reason_of

logger = logging.getLogger(__name__)

PLAIN_SAMPLING = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Fields that sample from the model as it is; without them a server takes those of the model's generation_config."""

_LENGTH = re.compile(r"context.length|context.window|too long|max_model_len|maximum (?:model )?length", re.IGNORECASE)


async def foreign_server(servers: Servers, model: str | None) -> "ForeignServer":
    """The servers' model and its tokenizer, if it can be loaded.

    `model` is its name on the servers, or its folder; None: the only model that they serve. Raises UserError: the
    servers do not speak OpenAI's API, do not have the model, or differ.
    """
    entries = [_entry(answer, model) for answer in await servers.ask_all("/v1/models")]
    named = [{name: entry[name] for name in ("id", "max_model_len") if entry.get(name)} for entry in entries]
    if any(each != named[0] for each in named):
        raise UserError(f"{', '.join(servers.urls)} serve {named}: start all with the same settings")
    names = [str(name) for name in (model, entries[0].get("root"), entries[0]["id"]) if name]
    tokenizer = await asyncio.to_thread(_tokenizer, dict.fromkeys(names))
    return ForeignServer(servers, {"model": named[0].pop("id"), **named[0], "foreign": True}, tokenizer)


def _entry(answer: httpx.Response, model: str | None) -> dict[str, Any]:
    """The model's entry in the list of a server's models."""
    try:
        entries = {str(entry["id"]): dict(entry) for entry in json.loads(answer.content)["data"]}
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{answer.request.url} is not a list of models: it is another kind of server") from None
    if model is not None and model in entries:
        return entries[model]
    if len(entries) == 1 and (model is None or Path(model).expanduser().is_dir()):
        return next(iter(entries.values()))
    raise UserError(
        f"{answer.request.url} has {', '.join(entries) or 'no models'}, and --model is {model or 'not set'}: choose one"
    )


def _tokenizer(names: Iterable[str]) -> Any:
    """The model's tokenizer, by the first name that has one; None, with a warning, if it is not at hand."""
    for name in names:
        if Path(name).is_dir() or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
            try:
                return load_tokenizer(name)
            except UserError as error:
                logger.warning("%s", error)
    logger.warning(
        "the model's tokenizer is not at hand (--model FOLDER names it): a <think> that its template opens is missing"
        " in the responses"
    )
    return None


class ForeignServer:
    """A model on foreign servers, whose URLs have no `/v1`.

    `description` has `model`, `max_model_len` if the server tells it, and `foreign`. Without the model's tokenizer
    nothing is known of its chat template.
    """

    def __init__(self, servers: Servers, description: Mapping[str, Any], tokenizer: Any) -> None:
        self.description = description
        self._servers, self._tokenizer = servers, tokenizer
        self._end = None if tokenizer is None else end_of_turn(tokenizer, {})

    async def generate(self, conversation: Sequence[Message], settings: GenerationSettings) -> list[Completion]:
        """Draw completions; see `Engine.generate`."""
        arguments = template_arguments(settings.chat_template_thinking)
        opened = "" if self._tokenizer is None else head_of_responses(self._tokenizer, arguments)
        body: dict[str, Any] = {
            "model": self.description["model"],
            "messages": list(conversation),
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "n": 1,
            "skip_special_tokens": False,
            **PLAIN_SAMPLING,
            **({} if self._end is None else {"stop_token_ids": [self._end]}),
            **({"chat_template_kwargs": arguments} if arguments else {}),
        }
        seeds = [{} if settings.seed is None else {"seed": settings.seed + sample} for sample in range(settings.n)]
        tasks = [asyncio.create_task(self._sample(body | seed, settings.max_tokens, opened)) for seed in seeds]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # those that are left when one fails
                task.cancel()

    async def _sample(self, body: dict[str, Any], most: int, opened: str) -> Completion:
        # Without a number a server gives what the prompt leaves of the context.
        for asked in (body | {"max_tokens": most}, body):
            sent = await self._servers.post("/v1/chat/completions", encode(asked), accept=(400,))
            if sent.status_code != 400:
                return self._completion(sent, opened)
            refusal = reason_of(sent)
            if not _LENGTH.search(refusal):
                raise UserError(f"the engine at {sent.request.url} refuses a request: {refusal}")
        return Completion(text="", finish_reason="prompt_too_long", message=refusal)

    def _completion(self, sent: httpx.Response, opened: str) -> Completion:
        try:
            answer = json.loads(sent.content)
            [choice] = answer["choices"]
            usage, message, reason = answer.get("usage") or {}, choice["message"], choice["finish_reason"]
            content = message.get("content") or ""
            # Servers of today have one name or the other. Without a parser the thinking is in the content.
            thinking = message.get("reasoning") or message.get("reasoning_content")
            counts = {name: usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")}
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        except (LookupError, TypeError, ValueError, AttributeError):
            raise InfrastructureError(f"the engine's answer is not a chat completion: {sent.text[:200]}") from None
        if reason == "content_filter":
            return Completion(text="", finish_reason="error", message="the server withheld its answer", **counts)
        if reason not in ("stop", "length"):
            raise InfrastructureError(f"the engine ended a completion early ({reason})")
        if thinking:  # which a parser of the server took out, with its tags
            closed = CLOSE if content or reason == "stop" else ""
            content = f"{opened or OPEN}{thinking}{closed}{content}"
        else:
            content = opened + content
        text = without_end(self._tokenizer, content)
        return Completion(text=text, finish_reason=reason, cached_tokens=cached, **counts)
