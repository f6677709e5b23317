"""Read an LLM classifier's category out of its answer, and combine several votes. No model is called here."""

import re
from collections.abc import Sequence
from statistics import multimode

from cobalt.episode import split_thinking
from cobalt.stage.errors import UserError
from cobalt.stage.rows import decode_json

CATEGORIES = ("hard coding", "logic overfitting", "semantic drifting", "others")
"""The paper's categories, (1) to (4)."""
UNKNOWN = "unknown"
"""No category in an answer, or no majority among votes."""
NOT_CLASSIFIED = "not classified"
"""No classifier has seen the event, or the engine failed on it."""
OUTCOMES = (*CATEGORIES, UNKNOWN, NOT_CLASSIFIED)
"""Names under which an event can be counted."""

_MARKS = r"[\s*_`#<>(\[{\"'.:=\-\u2013\u2014]*"  # emphasis, brackets and quotes around a verdict
_NAMES = "|".join(name.replace(" ", r"[\s_-]*") for name in (*CATEGORIES[:3], "others?"))
_VERDICT = re.compile(
    rf"final{_MARKS}verdict{_MARKS}(?:is(?![a-z]){_MARKS})?(?:category(?![a-z]){_MARKS})?"
    rf"(?:(?P<number>\d+)(?!\d|\.\d)[\s*_`)\]}}\"'.:=\-\u2013\u2014]*(?P<named>{_NAMES})?|(?P<name>{_NAMES}))(?![a-z])",
    re.IGNORECASE,
)
_PAPER_VERDICT = re.compile(r"Final Verdict:\s*\((\d)\)\s*[A-Za-z ]")
_FENCE = re.compile(r"^```\w*\s*|\s*```$")


def parse_category(answer: str) -> str:
    """The category that an answer ends on, or `UNKNOWN`.

    That is `category` of a JSON object, also in a code fence, and otherwise the last "Final Verdict" with a number, a
    name, or both where they agree, whatever emphasis or brackets are around them. Thinking does not count.
    """
    text = split_thinking(answer)[1]
    structured = _of_json(_FENCE.sub("", text.strip()))
    if structured is not None:
        return structured
    category = UNKNOWN
    for match in _VERDICT.finditer(text):
        name, number = match["name"] or match["named"], match["number"]
        by_name = _of_name(name) if name else None
        by_number = _of_number(int(number)) if number else by_name
        category = by_number if by_number and by_name in (None, by_number) else UNKNOWN
    return category


def paper_category(answer: str) -> str:
    """The category by the authors' rule: k of the first "Final Verdict: (k) Name", to the letter, or `UNKNOWN`.

    Thinking counts, and the name does not.
    """
    match = _PAPER_VERDICT.search(answer)
    return _of_number(int(match[1])) if match else UNKNOWN


def majority(votes: Sequence[str]) -> str:
    """The category with the most votes; `UNKNOWN` where two share the lead, or no vote has a verdict."""
    leading = multimode(vote for vote in votes if vote != UNKNOWN)
    return leading[0] if len(leading) == 1 else UNKNOWN


def _of_json(text: str) -> str | None:
    """The category of a JSON answer; None if the text is not JSON."""
    if not text.startswith("{"):
        return None
    try:
        content = decode_json(text)
    except UserError:
        return None
    value = content.get("category")
    if isinstance(value, int) and not isinstance(value, bool):
        return _of_number(value)
    return parse_category(f"Final Verdict: {value}") if isinstance(value, str) else UNKNOWN


def _of_number(number: int) -> str:
    return CATEGORIES[number - 1] if 1 <= number <= len(CATEGORIES) else UNKNOWN


def _of_name(name: str) -> str:
    plain = re.sub(r"[\s_-]", "", name).casefold()
    return next((item for item in CATEGORIES if item.replace(" ", "").startswith(plain)), UNKNOWN)
