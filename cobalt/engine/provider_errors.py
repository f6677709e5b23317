"""What a provider's error means for a run: the status alone does not say, so its words and numbers are read as well.

Providers use one status for many causes: 403 for a refused key, an empty account and a flagged prompt; 400 for a prompt
that is too long and for a `max_tokens` that can never fit; 429 for a rate and for an empty account. The wordings are
those of the providers' documentation and of the servers' sources. No request is made here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from cobalt.stage.errors import CobaltError, InfrastructureError


class ProviderFailure(InfrastructureError):
    """A failure of the provider that may not occur at another attempt."""


class TooManyTokens(CobaltError):
    """The model has no room for `max_tokens`; the parameters `shorter` fit, if there are such."""

    def __init__(self, message: str, shorter: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.shorter = shorter


class Cause(StrEnum):
    """Why a request failed."""

    ACCOUNT = "account"  # no money, no quota or no access: no request of this user succeeds
    KEY = "key"  # the key is refused
    MODEL = "model"  # there is no such model
    INPUT = "input"  # this conversation is refused for what it says
    PROMPT = "prompt"  # this conversation alone fills the model's context
    MAX_TOKENS = "max_tokens"  # `max_tokens` is above what the model or server takes
    ROOM = "room"  # conversation and `max_tokens` together are longer than the context, but neither is alone
    TRANSIENT = "transient"  # another attempt may succeed
    REQUEST = "request"  # this request is refused for another reason


# Names that stand in place of a status where an error is inside a response with status 200.
_NAMED_STATUS = {
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "content_filter": 400,
    "content_policy_violation": 400,
    "insufficient_quota": 402,
}
_UNNAMED_STATUS = 500

_FLAGGED = re.compile(r"\b(?:input|prompt|content|text|message|request)s?\b[^.]{0,20}\bflagged\b|\bcontent_policy_viol")
_POLICY = re.compile(
    r"\bflagged\b|\bmoderation|\bcontent[ _-]?(?:policy|filter|management|moderation|safety)|\binvalid_prompt\b"
    r"|\bsafety[ _](?:system|check|filter|reason|polic)|\bviolat\w*\b.{0,60}\b(?:polic|guideline|terms)"
    r"|\b(?:sensitive|inappropriate|prohibited|harmful|unsafe)[ _]?(?:content|words?|information|input)"
    r"|\bdata_?inspection_?failed|responsibleai"
)
_ACCOUNT = re.compile(
    r"\binsufficient[ _-](?:account[ _-])?(?:balance|quota|credits?|funds)"
    r"|\b(?:balance|credits?|funds)\b.{0,20}\b(?:too low|insufficient|exhausted|depleted|used up|not enough)"
    r"|\b(?:out of|not enough|no remaining) (?:credits?|balance|funds|quota)|\bpayment[ _]required"
    r"|\bbilling[ _](?:hard[ _]limit|not[ _]active)|\barrear|exceeded_current_quota_error"
    r"|\b(?:account|organi[sz]ation|workspace|subscription|access)\b.{0,40}"
    r"\b(?:suspended|terminated|deactivated|disabled|banned|blocked|flagged|not active|inactive|expired|overdue)"
)
_MONEY = re.compile(r"\b(?:billing|payment|quota|credits?|balance|prepaid|subscription)\b")

_CONTEXT_LENGTH = re.compile(
    r"(?:context|max(?:imum)? (?:prompt|input))[ _-]*(?:length|window|limit|size)[a-z ]{0,12}[:=(]?\s*\(?(\d+)"
    r"|max_model_len\D{0,12}(\d+)|maximum model length of (\d+)|model maximum \((\d+)|\bn_ctx\W{1,4}(\d+)"
    r"|max_total_tokens\D{0,25}(\d+)|(\d+) maximum\b|must be <= (\d+)\. given|must have less than (\d+) tokens"
    r"|tokens allowed \((\d+)|configured limit of (\d+) tokens|prompt cannot exceed (\d+)"
)
_PROMPT_LENGTH = re.compile(
    r"(\d+) (?:in (?:the|your) (?:messages|prompt|input)|of text input)"
    r"|(\d+) (?:`?inputs?`?|prompt) tokens|(\d+) tokens (?:from|in|of) (?:the |your )?(?:input|prompt|messages)"
    r"|(?<!maximum )\b(?:prompt|input|request)(?: (?:contains|has|is too long:|length|token count|tokens))?"
    r" ?(?:of |about |\((?:length )?)?(\d+)\b(?! characters)"
    r"|messages resulted in (\d+)|n_prompt_tokens\W{1,4}(\d+)|\breceived (\d+)|less than \d+ tokens\. given: (\d+)"
)
_SUM = re.compile(r"(\d+) \+ (\d+) > (\d+)")  # prompt, max_tokens, context: Anthropic
_BOUND = re.compile(r"at least (\d+) input tokens")  # vLLM stops counting a prompt where it no longer fits
_CONTEXT_WORDS = re.compile(
    r"context[ _-]?(?:length|window|limit|size)|context_length_exceeded|max_model_len|maximum model length"
    r"|(?:prompt|input|inputs|messages)`?\b.{0,30}\b(?:too long|too large)|tokens allowed|maximum prompt length"
    r"|tokens.{0,30}must be <=|inputs.{0,20}must have less|prompt cannot exceed|input tokens exceed"
    r"|tokens \(\d+\) exceed model maximum"
)
_MAX_TOKENS = r"max_(?:completion_|output_|new_)?tokens|maxoutputtokens|maximum tokens|max(?:imum)? output tokens"
_ANSWER_WORDS = re.compile(rf"{_MAX_TOKENS}|\bcompletion\b|\boutput tokens")
_TOO_LARGE = re.compile(
    r"too (?:large|high|big|many)|at most|less than|lower than|maximum allowed|<=?|>=?|exceed|greater than|fewer"
    r"|range (?:is|of)|supported range|maximum value"
)
_NOT_TOO_LARGE = re.compile(r"not supported|unsupported|limit was reached|with (?:a )?higher")


@dataclass(frozen=True, slots=True)
class ProviderError:
    """An error as a provider reported it.

    Attributes:
        status: The HTTP status; for an error inside a response with status 200 the one that the error names.
        words: All that the error says, in lower case, without commas in numbers.
        moderated: Whether the error is marked as a moderation of the input (OpenRouter's metadata).
        refused_input: Whether LiteLLM took it for a refusal of the input.
        overlong: Whether LiteLLM took it for a prompt beyond the context.
    """

    status: int
    words: str
    moderated: bool = False
    refused_input: bool = False
    overlong: bool = False

    @classmethod
    def inside(cls, error: object) -> Self:
        """The error that stands inside a response with status 200: an object of OpenAI's form, or a text."""
        details = dict(_details(error)) if isinstance(error, Mapping) else {"message": str(error)}
        return cls(_named_status(details), _plain_words(details), _is_moderated(error))

    @classmethod
    def raised(cls, error: Exception) -> Self:
        """The error that LiteLLM raised, with the provider's own body where it can be found."""
        body = _body_of(error)
        inner = body.get("error")
        details = {"message": str(error)} | dict(_details(inner if isinstance(inner, Mapping) else body))
        try:
            status = int(getattr(error, "status_code", 0) or 0)
        except (TypeError, ValueError):  # LiteLLM passes on whatever code a provider sent
            status = _UNNAMED_STATUS
        classes = {kind.__name__ for kind in type(error).__mro__}
        return cls(
            status,
            _plain_words(details),
            _is_moderated(inner or body),
            refused_input="ContentPolicyViolationError" in classes,
            overlong="ContextWindowExceededError" in classes,
        )

    def cause(self, max_tokens: int | None) -> tuple[Cause, int | None]:
        """Why the request failed.

        Args:
            max_tokens: As sent; None: not sent.

        Returns:
            The cause, and with `Cause.ROOM` the tokens that the conversation leaves, if the error tells.
        """
        return self._cause() or self._length(max_tokens) or (self._by_status(), None)

    def _cause(self) -> tuple[Cause, None] | None:
        client_error = 400 <= self.status < 500
        if self.moderated or (client_error and self.status not in (401, 402, 429) and _FLAGGED.search(self.words)):
            return Cause.INPUT, None
        if self.status == 402 or (client_error and _ACCOUNT.search(self.words)):
            return Cause.ACCOUNT, None
        if self.refused_input or (self.status in (400, 403, 422, 451) and _POLICY.search(self.words)):
            return Cause.INPUT, None
        if self.status == 403 and _MONEY.search(self.words):
            return Cause.ACCOUNT, None
        return None

    def _length(self, max_tokens: int | None) -> tuple[Cause, int | None] | None:
        """The cause if the error is about lengths: decided by its numbers, and by its words where they are missing."""
        words = self.words
        about_context = self.overlong or (self.status not in (401, 403, 404, 429) and _CONTEXT_WORDS.search(words))
        if not about_context:
            refused = self.status in (400, 422) and re.search(_MAX_TOKENS, words) and _TOO_LARGE.search(words)
            return (Cause.MAX_TOKENS, None) if refused and not _NOT_TOO_LARGE.search(words) else None
        prompt, context = _lengths(words)
        if context is not None and prompt is not None and prompt >= context:
            return Cause.PROMPT, None
        if context is not None and max_tokens is not None and max_tokens < context:
            bound = _BOUND.search(words) or "characters" in words
            if prompt is not None or bound:
                return Cause.ROOM, None if bound or prompt is None else context - prompt
        return (Cause.MAX_TOKENS if _ANSWER_WORDS.search(words) else Cause.PROMPT), None

    def _by_status(self) -> Cause:
        if self.status in (401, 403):
            return Cause.KEY
        if self.status == 404:
            return Cause.MODEL
        if self.status in (408, 409, 429) or self.status >= 500:
            return Cause.TRANSIENT
        return Cause.REQUEST


def headers_of(error: Exception) -> Mapping[str, str]:
    """The headers of the response that an error of LiteLLM stands for."""
    response = getattr(error, "response", None)
    return getattr(error, "litellm_response_headers", None) or getattr(response, "headers", None) or {}


def _lengths(words: str) -> tuple[int | None, int | None]:
    """Tokens of the prompt and of the model's context, as far as an error tells them."""
    if total := _SUM.search(words):
        return int(total[1]), int(total[3])
    bound, prompt, context = (kind.search(words) for kind in (_BOUND, _PROMPT_LENGTH, _CONTEXT_LENGTH))
    return _number(bound or prompt), _number(context)


def _number(match: re.Match[str] | None) -> int | None:
    return next((int(group) for group in match.groups() if group), None) if match else None


def _details(error: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """What an error says: its own values, and what a router passes on of the provider's error (`metadata.raw`).

    The rest of the metadata may quote the conversation.
    """
    for name, value in error.items():
        if isinstance(value, str | int) and not isinstance(value, bool):
            yield str(name), str(value)
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and "raw" in metadata:
        yield "raw", str(metadata["raw"])


def _plain_words(details: Mapping[str, Any]) -> str:
    said = ". ".join(f"{value}" if name == "message" else f"{name}: {value}" for name, value in details.items())
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", " ".join(said.split()).lower())


def _is_moderated(error: object) -> bool:
    metadata = error.get("metadata") if isinstance(error, Mapping) else None
    return isinstance(metadata, Mapping) and ("flagged_input" in metadata or "reasons" in metadata)


def _named_status(details: Mapping[str, str]) -> int:
    for name in ("code", "status", "status_code", "type"):
        value = details.get(name, "").strip().lower()
        if value.isdecimal() and 400 <= int(value) < 600:
            return int(value)
        if value in _NAMED_STATUS:
            return _NAMED_STATUS[value]
    return _UNNAMED_STATUS


def _body_of(error: Exception) -> Mapping[str, Any]:
    """The body of the response behind an error: LiteLLM's errors often have it in their context or their text alone."""
    cause: BaseException | None = error
    while cause is not None:
        body = getattr(cause, "body", None)
        if isinstance(body, Mapping):
            return body
        cause = cause.__cause__ or cause.__context__
    return _json_in(str(error))


def _json_in(text: str) -> Mapping[str, Any]:
    """The first JSON object in a text; {} if there is none."""
    start = text.find("{")
    try:
        found = json.JSONDecoder().raw_decode(text, start)[0] if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}
