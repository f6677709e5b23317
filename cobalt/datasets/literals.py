"""Values of JSON, and containers that JSON lacks, as Python code."""

import math


def python_literal(value: object) -> str:
    """Python code of a value: `repr`, but such that it can always be compiled.

    Integers that are too long for Python's limit are written in base 16, which has none, and NaN and infinite numbers
    as calls of `float`.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python_literal(key)}: {python_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(python_literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(python_literal, value)) + (",)" if len(value) == 1 else ")")
    if isinstance(value, set) and value:
        return "{" + ", ".join(map(python_literal, value)) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _LONG:
        return hex(value)
    return repr(value)


_LONG = 2000  # bits; under every limit that can be set
