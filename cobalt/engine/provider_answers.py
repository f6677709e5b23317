"""Answers as a provider really sent them: their text, counts and errors, and the cause of an error.

LiteLLM changes some answers, rejects others, and takes some failures for answers: it moves `<think>...</think>` out of
the text, cannot represent content that is a list of parts, and reads a choice that reports an error as one that
stopped. So answers of OpenAI's form are read as the provider sent them.

The status of an error does not tell its cause, so its words are read as well: 403 stands for a refused key, an empty
account and a flagged prompt; 400 for a prompt that is too long and for a `max_tokens` that can never fit; 429 for a
rate and for an empty account. No request is made here.
"""

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cobalt.episode.trajectory import FinishReason
from cobalt.stage.errors import InfrastructureError, RequestRefused

Body = Mapping[str, Any]


class ProviderFailure(InfrastructureError):
    """A failure of the provider that may not occur at another attempt."""


_UNNAMED_STATUS = 500
_ANY = range(600)
_PROMPT_AND_CONTEXT = re.compile(r"(\d+) \+ \d+ > (\d+)")
_KEY_REFUSED = "the provider refused the key in {key} for {model!r}: {reason}"

_ENDS: tuple[tuple[Container[int], str, type[Exception] | FinishReason, str], ...] = (
    # The account: no request succeeds. A flagged input is quoted, whatever it says; other words are the provider's own.
    (
        _ANY,
        r"^(?!.*flagged_input).*(?:insufficient[ _](?:account )?(?:balance|credits?|funds|quota)|balance is too low"
        r"|exceeded_current_quota_error|billing hard limit|arrearage"
        r"|(?:account|organization)(?: has been| was| is)? (?:flagged|disabled|suspended)"
        r"|config profile|partial credentials)",  # of AWS, which are not there
        RequestRefused,
        _KEY_REFUSED,
    ),
    # The names without blanks are those of LiteLLM's errors and of providers' codes.
    (
        (400, 403, 422, 451),
        r"(?:input|prompt|content|message)s?\b.{0,20}\bflagged|flagged_input|\bmoderation|contentpolicyviolation"
        r"|content[ _](?:policy|filter|management)|invalid_prompt|safety_check|violat\w+ usage guideline"
        r"|inappropriate content|data_inspection_failed|safety system|violates our polic",
        "error",
        "{reason}",
    ),
    ((401, 402, 403), "", RequestRefused, _KEY_REFUSED),
    ((404,), "", RequestRefused, "the provider has no model {model!r}: {reason}"),
    # The conversation, with `max_tokens` or alone, is longer than the model's context.
    (
        (400, 413, 422, 500),
        r"contextwindowexceeded|context[ _](?:length|window|limit|size)|max_model_len|maximum (?:model|prompt) length"
        r"|(?:prompt|input)`? is too long|must have less than \d+ tokens",
        "prompt_too_long",
        "{reason}",
    ),
    (
        (400, 422),
        r"^(?!.*with higher).*(?:max_(?:completion_|output_|new_)?tokens|maxoutputtokens|maximum tokens)",
        RequestRefused,
        "{model!r} does not take --max_tokens: give a smaller number ({reason})",
    ),
    ((408, 409, 429, *range(500, 600)), "", ProviderFailure, "the provider failed ({status}): {reason}"),
    (_ANY, "", InfrastructureError, "the provider refused the request ({status}): {reason}"),
)
"""Outcome of a request that failed, by status and words; the first row that fits counts.

An exception with its message, or a completion without text with its finish reason and message.
"""


@dataclass(frozen=True, slots=True)
class ProviderError:
    """An error as a provider reported it.

    Attributes:
        status: The HTTP status; for an error inside a response with status 200 the one that the error names.
        message: Its text.
        words: All that is known of it, in lower case.
        headers: Of the response.
    """

    status: int
    message: str
    words: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def raised(cls, error: Exception) -> Self:
        """The error that LiteLLM raised; what the provider sent is often in the errors behind it alone."""
        parts = []
        cause: BaseException | None = error
        while cause is not None:
            parts += [str(cause), str(getattr(cause, "body", ""))]
            cause = cause.__cause__ or cause.__context__
        status: Any = getattr(error, "status_code", None)  # LiteLLM passes on whatever code a provider sent
        headers = getattr(error, "litellm_response_headers", None)
        headers = headers or getattr(getattr(error, "response", None), "headers", None) or {}
        number = int(status) if re.fullmatch(r"[1-5]\d\d", str(status)) else _UNNAMED_STATUS
        return cls(number, str(error), " ".join(parts).lower(), headers)

    @property
    def pause(self) -> float:
        """The seconds of a `Retry-After` header; 0 without one, or where it is a date."""
        try:
            return max(0.0, float({name.lower(): text for name, text in self.headers.items()}["retry-after"]))
        except (KeyError, ValueError):
            return 0.0

    @property
    def end(self) -> tuple[type[Exception] | FinishReason, str]:
        """Outcome of the request, and the message, with the fields `key`, `model`, `status` and `reason`."""
        return next(
            (end, said)
            for statuses, words, end, said in _ENDS
            if self.status in statuses and re.search(words, self.words, re.DOTALL)
        )


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


def error_inside(body: Body) -> ProviderError | None:
    """The error that stands in the body of a response with status 200, or None: of the whole body, or of its choice.

    An error is an object of OpenAI's form, or a text. A choice whose finish reason is a failure has an error, even if
    nothing describes it. Some providers send an empty error with every answer.
    """
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    reason = str(choice.get("finish_reason") or "").lower()
    failed = reason in _FAILED or reason.endswith("_error")
    ended = f"the provider ended the answer with finish_reason {reason!r}" if failed else ""
    for error in (body.get("error"), choice.get("error"), ended):
        details = error if isinstance(error, Mapping) else {"message": error}
        if any(map(details.get, ("message", "code", "type"))):
            names = [str(details.get(name)) for name in ("code", "status", "status_code", "type")]
            status = next((int(name) for name in names if re.fullmatch(r"[45]\d\d", name)), _UNNAMED_STATUS)
            return ProviderError(status, str(details.get("message") or error), str(error).lower())
    return None


def left_of_context(message: str) -> dict[str, int]:
    """The `max_tokens` that a prompt leaves of the context, where a refusal adds them up, as Anthropic's does; or {}.

    Others take what is left without a number.
    """
    numbers = _PROMPT_AND_CONTEXT.search(message)
    left = int(numbers[2]) - int(numbers[1]) if numbers else 0
    return {"max_tokens": left} if left > 0 else {}


def read_answer(answer: Body, read: Body) -> tuple[str, FinishReason, str]:
    """Text and finish reason of a chat completion of OpenAI's form, and what went wrong ("" if there is a text).

    `read` is LiteLLM's reading of it ({} without one), which knows the providers' own names of finish reasons. A
    malformed one raises KeyError, TypeError or AttributeError.
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
