"""What the checks of HumanEval+ and MBPP+ use of numpy; the converter puts it in place of their import of numpy.

Sandboxes have the standard library only. Numbers and lists of numbers are compared as numpy compares them, without its
broadcasting: a number is never close to a list.
"""

from typing import Any


def _is_close(out: Any, exp: Any, rtol: float, atol: float) -> bool:
    if isinstance(exp, (list, tuple)):
        same = isinstance(out, (list, tuple)) and len(out) == len(exp)
        return same and all(_is_close(left, right, rtol, atol) for left, right in zip(out, exp, strict=True))
    if out == exp or (out != out and exp != exp):
        return True
    difference = abs(out - exp)
    return bool(difference < float("inf") and difference <= atol + rtol * abs(exp))


class np:  # noqa: N801 - the name that the checks use
    """The part of numpy that the checks use."""

    ndarray = float32 = float64 = ()  # `isinstance(x, ())` is False

    @staticmethod
    def allclose(out: Any, exp: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Whether numbers differ by at most atol + rtol x |exp|."""
        return _is_close(out, exp, rtol, atol)

    class testing:  # noqa: N801
        """The part of `numpy.testing` that the checks use."""

        @staticmethod
        def assert_allclose(out: Any, exp: Any, rtol: float = 1e-7, atol: float = 0) -> None:
            """Raise AssertionError unless `allclose`."""
            assert _is_close(out, exp, rtol, atol)
