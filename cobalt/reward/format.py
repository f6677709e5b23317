"""R_format: whether a response has the form that was asked for, and how long its parts are (Cobalt, reward).

The rules and their order are those of the authors' `code_reward_func_think.py`, except for the last flaw.
`cobalt.episode`, which knows more kinds of code blocks, decides which program is judged. In a response without a
flaw, that is the program that is checked here.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from cobalt.episode.thinking import CLOSE, OPEN
from cobalt.episode.turns import program_of
from cobalt.reward.lengths import TokenCounter
from cobalt.reward.repetition import is_repetitive

FLAW = -0.9
"""The reward for any `Flaw`."""

LONGEST_THINKING = 4096
LONGEST_ANSWER = 2048
LONGEST_EXPLANATION = 512
"""Tokens that are still fine; the explanation is what follows the code."""

TOO_LONG = -0.01
"""The reward for any part that is too long, where the program earned 0 or more."""
TOO_LONG_AND_FAILED = -0.1
"""The reward for each part that is too long, where the program earned less than 0."""

MOST_FOR_THINKING = 0.075
KEYWORDS = ("wait", "mistake", "however", "but", "retry", "error", "verify", "wrong", "evaluate")
KEYWORD_BONUS = 0.005
MOST_FOR_KEYWORDS = 0.025
MOST_USES = 4
"""A keyword used more often than this earns nothing."""

_OPENING = "```python"
_CLOSING = "\n```"
_KEYWORD = re.compile(rf"\b(?:{'|'.join(KEYWORDS)})\b")


class Flaw(StrEnum):
    """Flaw in a response's form; the first that holds, in this order."""

    REPETITION = "repetition"  # a block of 32 characters or more, eight times in a row
    THINKING = "thinking"  # not exactly one </think>, where one is required or the response has a tag
    CODE_BLOCK = "code_block"  # not exactly one ```python after </think>
    CLOSING_FENCE = "closing_fence"  # not exactly one line after ```python that begins with ```
    BACKTICK = "backtick"  # a back-tick in the code or on the line of the opening fence
    OTHER_PROGRAM = "other_program"  # the program that is judged is not this block


@dataclass(frozen=True, slots=True)
class FormatReward:
    """R_format and why.

    Attributes:
        value: The reward.
        flaw: Flaw in the form; None when it is right. With a flaw, lengths are not measured.
        long_thinking: More than `LONGEST_THINKING` tokens of thinking.
        long_answer: More than `LONGEST_ANSWER` tokens after the thinking.
        long_explanation: More than `LONGEST_EXPLANATION` tokens after the code.
    """

    value: float
    flaw: Flaw | None = None
    long_thinking: bool = False
    long_answer: bool = False
    long_explanation: bool = False


def format_reward(
    response: str,
    partial_reward: float,
    count_tokens: TokenCounter,
    *,
    require_thinking: bool = True,
) -> FormatReward:
    """R_format of a response.

    Where the program earned 0 or more, R_format is -0.01 if any part of the response is too long, and 0 otherwise.
    Where it earned less, the thinking earns up to 0.1 back: 0.075 * tanh(tokens / 1024), plus 0.005 for each of the
    `KEYWORDS` used one to four times, 0.025 at most. Each part that is too long then costs 0.1, and too long a thinking
    earns nothing back.

    Args:
        response: The whole response as decoded. The text before `</think>` is the thinking, including a `<think>` that
            the model wrote itself.
        partial_reward: Correctness and improvement together.
        count_tokens: `cobalt.reward.lengths.token_counter`.
        require_thinking: If false, a response with neither `<think>` nor `</think>` is all answer, after a thinking of
            no tokens.
    """
    if is_repetitive(response):
        return FormatReward(FLAW, Flaw.REPETITION)
    if not require_thinking and OPEN not in response and CLOSE not in response:
        thinking, answer = "", response.strip()
    elif response.count(CLOSE) != 1:
        return FormatReward(FLAW, Flaw.THINKING)
    else:
        thinking, _, answer = (part.strip() for part in response.partition(CLOSE))
    if answer.count(_OPENING) != 1:
        return FormatReward(FLAW, Flaw.CODE_BLOCK)
    block = answer.partition(_OPENING)[2]
    if block.count(_CLOSING) != 1:
        return FormatReward(FLAW, Flaw.CLOSING_FENCE)
    code, _, explanation = block.partition(_CLOSING)
    if "`" in code:
        return FormatReward(FLAW, Flaw.BACKTICK)
    program = program_of(response)
    if program is None or program.strip() != code.replace("\r\n", "\n").partition("\n")[2].strip():
        return FormatReward(FLAW, Flaw.OTHER_PROGRAM)

    thinking_tokens = count_tokens(thinking)
    long_thinking = thinking_tokens > LONGEST_THINKING
    long_answer = count_tokens(answer) > LONGEST_ANSWER
    long_explanation = count_tokens(explanation.strip()) > LONGEST_EXPLANATION
    if partial_reward >= 0.0:
        value = TOO_LONG if long_thinking or long_answer or long_explanation else 0.0
    else:
        value = TOO_LONG_AND_FAILED if long_thinking else _thinking_bonus(thinking, thinking_tokens)
        value += TOO_LONG_AND_FAILED * (long_answer + long_explanation)
    return FormatReward(value, None, long_thinking, long_answer, long_explanation)


def _thinking_bonus(thinking: str, tokens: int) -> float:
    uses = Counter(_KEYWORD.findall(thinking.lower()))
    keywords = sum(count <= MOST_USES for count in uses.values())
    return math.tanh(tokens / 1024) * MOST_FOR_THINKING + min(keywords * KEYWORD_BONUS, MOST_FOR_KEYWORDS)
