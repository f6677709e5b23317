"""What a provider really sent: LiteLLM changes some answers, rejects others, and takes some failures for answers.

LiteLLM moves `<think>...</think>` out of the text, cannot represent content that is a list of parts, and reads a choice
that reports an error as one that stopped. So answers of OpenAI's form are read as the provider sent them.
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

    A choice whose finish reason is a failure has an error, even if nothing describes it. Some providers send an empty
    error with every answer.
    """
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    for error in (body.get("error"), choice.get("error")):
        if any(map(error.get, ("message", "code", "type"))) if isinstance(error, Mapping) else error:
            return error
    reason = str(choice.get("finish_reason") or "").lower()
    if reason in _FAILED or reason.endswith("_error"):
        return f"the provider ended the answer with finish_reason {reason!r}"
    return None


def read_answer(answer: Body, read: Body) -> tuple[str, FinishReason, str]:
    """Text and finish reason of a chat completion of OpenAI's form, and what went wrong ("" if there is a text).

    `read` is LiteLLM's reading of it ({} without one), which knows the providers' own names of finish reasons.

    Raises:
        KeyError, TypeError, AttributeError: it is malformed.
    """
    if not answer["choices"]:
        return "", "error", "the provider sent no choice"
    choice = answer["choices"][0]
    message = choice["message"]
    text = _text(message.get("content"))
    reasons = [each.get("finish_reason") for each in (choice, *read.get("choices", ()))]
    if "content_filter" in reasons:
        return text, "error", "the provider's content filter ended the answer"
    refusal = message.get("refusal") or (message.get("provider_specific_fields") or {}).get("refusal")
    problem = f"the model refused: {refusal}" if refusal else "the provider sent no text"
    cut = any(reason in _CUT for reason in reasons)
    return text, "length" if cut else "stop", "" if text else problem


def usage_of(answer: Body) -> dict[str, Any]:
    """An answer's counts of tokens without those that are None; {} if it has none, for which LiteLLM has zeros."""
    usage = answer.get("usage") or {}
    counted = usage.get("prompt_tokens") or usage.get("completion_tokens")
    return {name: value for name, value in usage.items() if value is not None} if counted else {}


def _text(content: str | Mapping[str, Any] | list[Any] | None) -> str:
    """A message's content as text; thinking, reasoning and refusals among its parts are left out."""
    if isinstance(content, list):
        return "".join(map(_text, content))
    if isinstance(content, Mapping):
        return content.get("text") or "" if content.get("type") in _TEXT_PARTS else ""
    return content or ""
