"""The program that records which calls a check makes: it runs the check on a reference program and lists the calls.

It runs in a sandbox of the judge, because both are code of a data set. Standard input is a JSON object: `program` (the
reference), `fn_name` and `check`. Standard output is the list of the calls in JSON, each as Python source. If the check
refuses the reference, the process ends with the check's exception.
"""

import json
import math
import sys
from typing import Any

_LONG = 2000  # bits; under every limit that can be set


def source_of(value: Any) -> str:
    """The value as Python source, which can be compiled whatever Python's limit of the digits of integers.

    Raises:
        TypeError: it is, or holds, a value of another type than those of Python's literals.
    """
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    if kind is int and value.bit_length() > _LONG:
        return hex(value)
    if value is None or kind in (bool, int, float, str, bytes):
        return repr(value)
    if kind is complex:
        return f"complex({source_of(value.real)}, {source_of(value.imag)})"
    if kind is list:
        return f"[{', '.join(map(source_of, value))}]"
    if kind is tuple:
        return f"({''.join(source_of(item) + ', ' for item in value)})"
    if kind in (set, frozenset):
        return f"{kind.__name__}([{', '.join(map(source_of, value))}])"
    if kind is dict:
        return "{" + ", ".join(f"{source_of(key)}: {source_of(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"the check calls the function with a value of the type {kind.__name__}")


def recorded(program: str, fn_name: str, check: str) -> list[str]:
    """The calls that the check makes of the program's function; raises whatever the check raises."""
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, "<program>", "exec", dont_inherit=True), names)
    function, calls = names[fn_name], []

    def recording(*arguments: Any, **named: Any) -> Any:
        texts = [*map(source_of, arguments), *(f"{name}={source_of(value)}" for name, value in named.items())]
        calls.append(f"{fn_name}({', '.join(texts)})")  # before the function may change its arguments
        return function(*arguments, **named)

    exec(compile(check, "<check>", "exec", dont_inherit=True), {"__name__": "check", fn_name: recording})
    return calls


def main() -> None:
    """Read the reference and the check, and write the calls."""
    sys.set_int_max_str_digits(0)
    test = json.loads(sys.stdin.buffer.read())
    answer, sys.stdout = sys.stdout, sys.stderr
    answer.write(json.dumps(recorded(**test)))


if __name__ == "__main__":
    main()
