"""What a provider really sent: LiteLLM changes some answers, rejects others, and takes some failures for answers.

LiteLLM moves `<think>...</think>` out of the text, cannot represent content that is a list of parts, and reads a choice
that reports an error as one that stopped. The functions here read the body of a response as the provider sent it. They
know the forms of OpenAI's API, Ollama and Bedrock; of any other body they say nothing, and LiteLLM's reading holds.
"""

import json
from collections.abc import Mapping
from typing import Any

from cobalt.episode.trajectory import FinishReason

Body = Mapping[str, Any]

# OpenRouter and vLLM; vLLM and SGLang; DeepSeek, which was out of resources.
_FAILED = ("error", "abort", "aborted", "insufficient_system_resource")
_CUT = ("length", "model_length", "model_context_window_exceeded")  # the last two: Mistral, and Anthropic or Zhipu
_TEXT_PARTS = (None, "text", "output_text")


def read_body(original: object) -> Body:
    """The JSON object that a response consists of; {} if it is none."""
    if isinstance(original, str):
        try:
            original = json.loads(original)
        except ValueError:
            return {}
    return original if isinstance(original, Mapping) else {}


def error_inside(body: Body) -> object:
    """The error that stands in the body of a response with status 200, or None: of the whole body, or of its choice.

    A choice whose finish reason is a failure has an error, even if nothing describes it.
    """
    choice = _choice(body)
    for error in (body.get("error"), choice.get("error")):
        if _is_meaningful(error):
            return error
    reason = str(choice.get("finish_reason") or "").lower()
    if reason in _FAILED or reason.endswith("_error"):
        return f"the provider ended the answer with finish_reason {reason!r}"
    return None


def read_answer(response: Any, body: Body, *, as_sent: bool) -> tuple[str, FinishReason, str]:
    """Text and finish reason of a response, and what went wrong ("" if there is a text).

    Args:
        response: As LiteLLM reads it.
        body: As the provider sent it; {} if that is not known.
        as_sent: Prefer the text as the provider sent it.
    """
    if not response.choices:
        return "", "error", "the provider sent no choice"
    choice = response.choices[0]
    content = choice.message.content
    texts = [_text(_message(body).get("content")), content if isinstance(content, str) else None]
    text = next(filter(None, texts if as_sent else reversed(texts)), "")
    if choice.finish_reason == "content_filter":
        return text, "error", "the provider's content filter ended the answer"
    cut = choice.finish_reason == "length" or _choice(body).get("finish_reason") in _CUT
    refusal = (getattr(choice.message, "provider_specific_fields", None) or {}).get("refusal")
    message = f"the model refused: {refusal}" if refusal else "the provider sent no text"
    return text, "length" if cut else "stop", "" if text else message


def usage_of(response: Any) -> dict[str, Any]:
    """What a response says of its tokens, as JSON-able values without those that are None; {} if it says nothing."""
    usage = getattr(response, "usage", None)
    if usage is None or not (usage.prompt_tokens or usage.completion_tokens):
        return {}  # LiteLLM reports zeros if a provider reports nothing
    content = json.loads(json.dumps(usage.model_dump(), default=str))
    return {name: value for name, value in content.items() if value is not None}


def with_plain_content(body: Body) -> dict[str, Any] | None:
    """The body with its choices' lists of parts as strings, as LiteLLM can read it; None if no choice has a list."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    plain = [_with_plain_message(choice) for choice in choices]
    return None if plain == choices else dict(body) | {"choices": plain}


def _with_plain_message(choice: Any) -> Any:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list | Mapping):
        return choice
    return dict(choice) | {"message": dict(message) | {"content": _text(message["content"])}}


def _text(content: Any) -> str | None:
    """A message's content as text; thinking, reasoning and refusals among its parts are left out."""
    if isinstance(content, Mapping):
        content = [content]
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else _text_of_part(part) for part in content)
    return content if isinstance(content, str) else None


def _text_of_part(part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS:
        return ""
    text = part.get("text")
    return text if isinstance(text, str) else ""


def _choice(body: Body) -> Body:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else {}


def _message(body: Body) -> Body:
    """The message of a body of OpenAI's form, of Ollama's (`message`), or of Bedrock's (`output.message`)."""
    output = body.get("output")
    for holder in (_choice(body), body, output if isinstance(output, Mapping) else {}):
        message = holder.get("message")
        if isinstance(message, Mapping):
            return message
    return {}


def _is_meaningful(error: object) -> bool:
    """Some providers send an empty error with every answer."""
    if isinstance(error, Mapping):
        return any(error.get(field) for field in ("message", "code", "type"))
    return bool(error)
