"""Whether a program's output matches the expected output, under a named rule.

There are three rules: `strip` (the paper's), `lines` (as LiveCodeBench compares) and `float` (lines with tolerances).
What passes under one rule passes under those after it. Outputs are bytes, because a program may print bytes that are
not UTF-8.
"""

import json
import re
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

from cobalt.judge.settings import JudgeSettings

# Text is stripped as `str.strip` does it. Bytes that are not UTF-8 are kept as lone surrogates.
_ERRORS = "surrogateescape"

# These are compared as words: they are within no tolerance of anything. Languages print them in different case.
_NOT_FINITE = re.compile("[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)

_WHOLE = re.compile("[+-]?[0-9]+")

# No spelling of a JSON value is this many times longer than another: 309 digits are 62 times as long as 1e308.
_LONGEST_SPELLING = 64

_Number = int | float | Decimal


def outputs_match(output: bytes, expected: str, settings: JudgeSettings) -> bool:
    """Whether what a program wrote to standard output matches the expected text under the settings' rule."""
    mine, theirs = _text(output.decode("utf-8", _ERRORS)), _text(expected)
    if settings.comparison == "strip" or mine == theirs:
        return mine == theirs
    return _lines_match(mine, theirs, settings)


def _text(text: str) -> str:
    r"""The text stripped, with `\r\n` and `\r` replaced by `\n`, as Python reads it in text mode (paper)."""
    text = text.strip()
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def values_match(output: bytes, expected: str, settings: JudgeSettings) -> bool:
    """Whether two JSON values match: by Python's `==` or, under "float", their numbers by the tolerances.

    Unlike in Python, NaN equals NaN, because otherwise no program could pass such a test. Texts that are not JSON, or
    too deeply nested to read, match only if they are equal.
    """
    mine, theirs = output.decode("utf-8", _ERRORS).strip(), expected.strip()
    if mine == theirs:
        return True
    # These checks keep the memory of parsing in proportion to the expected output, however much a program writes.
    if len(mine) > _LONGEST_SPELLING * (len(theirs) + 1):
        return False
    escapes = theirs.count("\\u")  # each may be one of these characters
    if any(mine.count(character) > theirs.count(character) + escapes for character in "[{,:"):
        return False
    try:
        left, right = _JSON.decode(mine), _JSON.decode(theirs)
    except (ValueError, RecursionError):
        return False
    return _same_values(left, right, settings)


def _lines_match(output: str, expected: str, settings: JudgeSettings) -> bool:
    if output.count("\n") != expected.count("\n"):
        return False
    for left, right in zip(output.split("\n"), expected.split("\n"), strict=True):
        if left == right or left.strip() == right.strip():
            continue
        theirs = right.split()
        # Split at most one token more than expected, so that a wrong line takes no more memory than the right one.
        mine = left.split(maxsplit=len(theirs))
        if len(mine) != len(theirs):
            return False
        for one, other in zip(mine, theirs, strict=True):
            if one != other and not _tokens_match(one, other, settings):
                return False
    return True


def _tokens_match(mine: str, theirs: str, settings: JudgeSettings) -> bool:
    """Whether two different tokens are the same number or, under "float", close numbers."""
    # Python also reads `_` and other digits, which are not numbers in other languages.
    if not (mine + theirs).isascii() or "_" in mine + theirs:
        return False
    if _equal_tokens(mine, theirs):
        return True
    whole = _WHOLE.fullmatch(mine) and _WHOLE.fullmatch(theirs)  # a tolerance is for what was rounded
    return not whole and _close(mine, theirs, settings)


def _equal_tokens(mine: str, theirs: str) -> bool:
    """Whether two tokens are the same number, or the same word for an infinite number or NaN."""
    try:
        left, right = Decimal(mine), Decimal(theirs)
    except InvalidOperation:  # also for exponents of 19 or more digits
        return False
    if left.is_finite() and right.is_finite():
        return left == right
    return _NOT_FINITE.fullmatch(theirs) is not None and mine.lower() == theirs.lower()


def _close(mine: _Number | str, theirs: _Number | str, settings: JudgeSettings) -> bool:
    """Whether two numbers, or the texts of numbers, are finite and within the tolerances of "float"."""
    if settings.comparison != "float":
        return False
    try:
        output, expected = float(mine), float(theirs)
    except (ValueError, OverflowError):  # no number, or an integer beyond a float's range
        return False
    # Relative to the expected value, so that a wrong answer cannot widen its own tolerance.
    tolerance = max(settings.float_absolute, settings.float_relative * abs(expected))
    return isfinite(output) and isfinite(expected) and abs(output - expected) <= tolerance


_JSON = json.JSONDecoder(parse_int=Decimal)  # `int` takes quadratic time, and may refuse long numbers


def _same_values(output: Any, expected: Any, settings: JudgeSettings) -> bool:
    """Whether two JSON values have the same shape, keys and texts, and numbers that match."""
    # A list of pairs, because values may be nested as deeply as Python's own recursion limit allows.
    pairs: list[tuple[Any, Any]] = [(output, expected)]
    while pairs:
        mine, theirs = pairs.pop()
        if isinstance(mine, list) and isinstance(theirs, list):
            if len(mine) != len(theirs):
                return False
            pairs += zip(mine, theirs, strict=True)
        elif isinstance(mine, dict) and isinstance(theirs, dict):
            if mine.keys() != theirs.keys():
                return False
            pairs += [(mine[key], theirs[key]) for key in theirs]
        elif isinstance(mine, _Number) and isinstance(theirs, _Number):
            whole = not isinstance(mine, float) and not isinstance(theirs, float)  # of any size
            equal = mine == theirs or (mine != mine and theirs != theirs)
            if not equal and (whole or not _close(mine, theirs, settings)):
                return False
        elif mine != theirs:
            return False
    return True
