"""The program that decides an assertion test: it runs the test's check on what another program's calls returned.

It runs in a sandbox, in which the program that it decides about is not. The first line of standard input is a JSON
object with `fn_name`, `script` and `check` as in the test. The rest is the text that `inside.script_driver` left. The
check is executed with `fn_name` bound to a stand-in, which returns the values one call after the other. Only if it ends
without an exception is the word `accepted` printed.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

ACCEPTED = "accepted"

_Call = tuple[tuple[Any, ...], dict[str | None, Any]]


class CheckError(Exception):
    """The values do not belong to the calls that the check makes."""


class Collection(Sequence[Any]):
    """In place of a range, a deque, a view of a dictionary or the like: its items, and equal to nothing."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = list(items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": bytes,
    "collection": Collection,
    "iterable": lambda items: iter(list(items)),  # as a generator: its items once, equal to nothing
}


def decode(value: Any) -> Any:
    """The value that `_judge_typed` wrote.

    Raises:
        CheckError, TypeError, ValueError, ArithmeticError: `_judge_typed` writes no such text.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise CheckError("a value has several types")
    [(kind, content)] = value.items()
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind == "Decimal":
        from decimal import Decimal

        return Decimal(content)
    if kind == "Fraction":
        from fractions import Fraction

        numerator, denominator = content
        if not isinstance(numerator, int) or not isinstance(denominator, int):
            raise CheckError("a fraction is not one of integers")  # of a text it could be one of huge integers
        return Fraction(numerator, denominator)
    if kind == "complex":
        return complex(*content)
    if kind not in _KINDS or not isinstance(content, list):
        raise CheckError(f"there is no such value of the type {kind}")
    return _KINDS[kind](decode(item) for item in content)


def recorded_calls(script: str, fn_name: str) -> list[_Call | None]:
    """The arguments of each expression statement of a script; None for others than calls of `fn_name` with literals."""
    expressions = [statement.value for statement in ast.parse(script).body if isinstance(statement, ast.Expr)]
    return [_literal_call(expression, fn_name) for expression in expressions]


def _literal_call(expression: ast.expr, fn_name: str) -> _Call | None:
    if not isinstance(expression, ast.Call) or ast.unparse(expression.func) != fn_name:
        return None
    try:
        arguments = tuple(map(ast.literal_eval, expression.args))
        return arguments, {keyword.arg: ast.literal_eval(keyword.value) for keyword in expression.keywords}
    except (ValueError, TypeError):
        return None


def stand_in(values: list[Any], calls: list[_Call | None], refused: list[str]) -> Callable[..., Any]:
    """A function that returns one value after the other.

    It raises CheckError if it is called more often than there are values, or with other arguments than the call that
    returned the value. `refused` gets the message too, because the check may catch the error.
    """
    if len(values) != len(calls):
        raise CheckError(f"there are {len(values)} values of {len(calls)} calls")
    left = iter(zip(values, calls, strict=True))

    def function(*arguments: Any, **named: Any) -> Any:
        for value, call in left:
            # Values that are not equal to themselves, such as NaN, have equal texts.
            if call is None or call == (arguments, named) or repr(call) == repr((arguments, named)):
                return value
            break
        refused.append(f"the check makes a call that the script does not make: {arguments!r:.200}")
        raise CheckError(refused[-1])

    return function


def run_check(fn_name: str, script: str, check: str, values: str) -> None:
    """Execute a check; raises what it raises, and CheckError if it makes calls that the script does not make."""
    decoded = decode(json.loads(values))
    if not isinstance(decoded, list):
        raise CheckError("the values are not a list")
    refused: list[str] = []
    function = stand_in(decoded, recorded_calls(script, fn_name), refused)
    exec(compile(check, "<check>", "exec", dont_inherit=True), {"__name__": "check", fn_name: function})
    if refused:
        raise CheckError(refused[0])


def main() -> None:
    """Read the test, run its check, and say whether the check accepts the values."""
    sys.set_int_max_str_digits(0)
    test, values = sys.stdin.read().split("\n", 1)
    answer, sys.stdout = sys.stdout, sys.stderr  # what the check prints is not the answer
    run_check(**json.loads(test), values=values)
    answer.write(ACCEPTED)


if __name__ == "__main__":
    main()
