"""Whether a program's output is the expected one, under a named rule.

Three rules: `strip` (the paper's), `lines` (as LiveCodeBench compares) and `float` (lines with tolerances).
Outputs are bytes, because a program may print bytes that are no text. It runs nothing.
"""

import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from cobalt.judge.settings import JudgeSettings

# Text is stripped as `str.strip` does, so bytes that are no UTF-8 are carried through as lone surrogates.
_ERRORS = "surrogateescape"


def outputs_match(output: bytes, expected: str, settings: JudgeSettings) -> bool:
    """Compare under the settings' rule.

    Args:
        output: What the program wrote to standard output.
        expected: The test's expected output.
        settings: Names the rule and, for "float", the tolerances.
    """
    text = output.decode("utf-8", _ERRORS)
    if settings.comparison == "strip":
        return text.strip() == expected.strip()
    if settings.comparison == "lines":
        return _lines_match(text, expected, _equal_decimals)

    def close(left: str, right: str) -> bool:
        return _close_numbers(left, right, settings.float_absolute, settings.float_relative)

    return _lines_match(text, expected, close)


def _lines_match(output: str, expected: str, numbers_match: Callable[[str, str], bool]) -> bool:
    left_lines, right_lines = output.strip().split("\n"), expected.strip().split("\n")
    if len(left_lines) != len(right_lines):
        return False
    for left, right in zip(left_lines, right_lines, strict=True):
        if left.strip() == right.strip():
            continue
        left_tokens, right_tokens = left.split(), right.split()
        if len(left_tokens) != len(right_tokens):
            return False
        for mine, theirs in zip(left_tokens, right_tokens, strict=True):
            if mine != theirs and not numbers_match(mine, theirs):
                return False
    return True


def _equal_decimals(left: str, right: str) -> bool:
    try:
        return Decimal(left) == Decimal(right)
    except InvalidOperation:
        return False


def _close_numbers(left: str, right: str, absolute: float, relative: float) -> bool:
    if _equal_decimals(left, right):  # large integers, which a float would round
        return True
    try:
        mine, theirs = float(left), float(right)
    except ValueError:
        return False
    # Relative to the expected value, so that a wild answer cannot widen its own tolerance.
    return math.isfinite(mine) and math.isfinite(theirs) and abs(mine - theirs) <= max(absolute, relative * abs(theirs))
