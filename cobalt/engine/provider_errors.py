"""The cause of a provider's error: the status alone does not tell, so its words are read as well.

Providers use one status for many causes: 403 for a refused key, an empty account and a flagged prompt; 400 for a prompt
that is too long and for a `max_tokens` that can never fit; 429 for a rate and for an empty account. No request is made
here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from cobalt.stage.errors import InfrastructureError


class ProviderFailure(InfrastructureError):
    """A failure of the provider that may not occur at another attempt."""


class Cause(StrEnum):
    """Why a request failed."""

    ACCOUNT = "account"  # the key is refused, or the account has no money or no access: no request succeeds
    MODEL = "model"  # there is no such model
    INPUT = "input"  # this conversation is refused for what it says
    LENGTH = "length"  # the conversation, with `max_tokens` or alone, is longer than the model's context
    MAX_TOKENS = "max_tokens"  # `max_tokens` is above what the model or server takes
    TRANSIENT = "transient"  # another attempt may succeed
    REQUEST = "request"  # this request is refused for another reason


_UNNAMED_STATUS = 500

# The names without blanks are those of LiteLLM's errors and of providers' codes.
_INPUT = re.compile(
    r"(?:input|prompt|content|message)s?\b.{0,20}\bflagged|flagged_input|\bmoderation|contentpolicyviolation"
    r"|content[ _](?:policy|filter|management)|invalid_prompt|safety_check|violat\w+ usage guideline"
    r"|inappropriate content|data_inspection_failed|safety system|violates our polic"
)
_ACCOUNT = re.compile(
    r"insufficient[ _](?:account )?(?:balance|credits?|funds|quota)|balance is too low|exceeded_current_quota_error"
    r"|billing hard limit|arrearage|(?:account|organization)(?: has been| was| is)? (?:flagged|disabled|suspended)"
)
_LENGTH = re.compile(
    r"contextwindowexceeded|context[ _](?:length|window|limit|size)|max_model_len|maximum (?:model|prompt) length"
    r"|(?:prompt|input)`? is too long|must have less than \d+ tokens"
)
_MAX_TOKENS = re.compile(r"max_(?:completion_|output_|new_)?tokens|maxoutputtokens|maximum tokens")


@dataclass(frozen=True, slots=True)
class ProviderError:
    """An error as a provider reported it.

    Attributes:
        status: The HTTP status; for an error inside a response with status 200 the one that the error names.
        message: What it says.
        words: All that is known of it, in lower case.
        headers: Of the response.
    """

    status: int
    message: str
    words: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def inside(cls, error: object) -> Self:
        """The error that stands inside a response with status 200: an object of OpenAI's form, or a text."""
        details = error if isinstance(error, Mapping) else {}
        names = [str(details.get(name)) for name in ("code", "status", "status_code", "type")]
        status = next((int(name) for name in names if re.fullmatch(r"[45]\d\d", name)), _UNNAMED_STATUS)
        return cls(status, str(details.get("message") or error), str(error).lower())

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
        number = int(status) if str(status).isdecimal() else _UNNAMED_STATUS
        return cls(number, str(error), " ".join(parts).lower(), headers)

    @property
    def cause(self) -> Cause:
        """Why the request failed."""
        # A flagged input is quoted, whatever it says; other words of an account are the provider's own.
        of_account = _ACCOUNT.search(self.words) and "flagged_input" not in self.words
        if self.status in (400, 403, 422, 451) and not of_account and _INPUT.search(self.words):
            return Cause.INPUT
        if self.status in (401, 402, 403) or of_account:
            return Cause.ACCOUNT
        if self.status == 404:
            return Cause.MODEL
        if self.status in (400, 413, 422, 500) and _LENGTH.search(self.words):
            return Cause.LENGTH
        if self.status in (400, 422) and _MAX_TOKENS.search(self.words) and "with higher" not in self.words:
            return Cause.MAX_TOKENS
        return Cause.TRANSIENT if self.status in (408, 409, 429) or self.status >= 500 else Cause.REQUEST
