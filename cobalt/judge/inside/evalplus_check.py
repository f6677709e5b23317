"""How EvalPlus decides whether a value is right; the converter puts this text into the checks of its release files.

The rules are those of EvalPlus 0.3.1 (`evalplus/eval`). The text runs in sandboxes, where the converter replaces the
import of numpy's stand-in. It must not use anything else of this package.
"""

import math
from typing import Any

from cobalt.judge.inside.numpy_stand_in import np

# Functions of MBPP+ whose lists are compared as sets.
_AS_SETS = {
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
}  # fmt: skip
# Functions of MBPP+ that say yes or no, by True or False or by a match or None; the reference does the latter.
_AS_TRUTHS = {"check_str", "text_match_three", "text_starta_endb"}


def accepts(name: str, arguments: Any, out: Any, expected: Any, atol: float) -> bool:
    """Whether `out` is right.

    Args:
        name: The function.
        arguments: The arguments of the call, as a list.
        out: What the program returned.
        expected: What the reference returned.
        atol: The absolute tolerance of the task. With 0, floats have one of 1e-6.
    """
    if name == "find_zero":  # HumanEval/32: any root of the polynomial
        return bool(abs(sum(factor * math.pow(out, power) for power, factor in enumerate(arguments[0]))) <= atol)
    equal = _equal(name, arguments, out, expected, atol)
    if atol == 0 and _floats(expected):
        atol = 1e-6
    if equal or atol == 0:
        return equal
    if type(out) is not type(expected) or (isinstance(expected, (list, tuple)) and len(out) != len(expected)):
        return False
    return bool(np.allclose(out, expected, rtol=1e-07, atol=atol))


def _equal(name: str, arguments: Any, out: Any, expected: Any, atol: float) -> bool:
    if name == "are_equivalent":  # MBPP/164: the statement does not say what is asked for
        return True
    if name in _AS_SETS:
        return set(out) == set(expected)
    if name in _AS_TRUTHS:
        said = out if isinstance(out, bool) else out is not None
        return bool(said == (expected is not None))
    if out == expected:
        return True
    if name == "sum_div":  # MBPP/295: 0 has no divisors, or is one
        return bool(out == 0)
    if name == "surface_Area":  # MBPP/581: the second number may be the height of the pyramid
        base, height = arguments
        slant = math.sqrt((base / 2) ** 2 + height**2)
        return bool(abs(out - round(base**2 + 2 * base * slant)) <= atol)
    if name == "digit_distance_nums":  # MBPP/558: the shorter number may be filled up with zeros
        first, second = (str(number) for number in arguments)
        width = max(len(first), len(second))
        pairs = zip(first.zfill(width), second.zfill(width), strict=True)
        return bool(out == sum(abs(int(left) - int(right)) for left, right in pairs))
    return False


def _floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)) and value:
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)
