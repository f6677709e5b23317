"""Function problems: the judge calls a function with typed arguments, and compares the value it returns.

Such a suite has `fn_name`. An input is one JSON value a line, one line an argument; an expected output is the value in
canonical JSON. A program is judged as ever, on standard input and output, with a driver behind it that calls the
function: behind, so that the line numbers of its tracebacks are its own. It runs nothing itself.
"""

import functools
import json
from pathlib import Path
from typing import Any

from cobalt.judge import call_driver

# What the driver writes before a value. Output without it is the program's own, which ended before its function
# returned.
VALUE_MARK = b"\x1e"


def canonical_json(value: Any) -> str:
    """The text in which expected values are kept and returned ones written: one for 2 and 2.0, another for True and 1.

    Values are compared, not these texts; but equal texts, which are the rule, need not be read.

    Raises:
        TypeError: the value is of a type that JSON does not have.
        ValueError: an integer has more digits than Python writes (4,300).
    """
    return json.dumps(call_driver._judge_json(value))


def call_input(arguments: list[Any]) -> str:
    """The input of one call: each argument as JSON on a line of its own."""
    return "".join(json.dumps(argument) + "\n" for argument in arguments)


def callable_program(code: str, fn_name: str | None) -> str:
    """The program to run: `code` itself, or with the call of `fn_name` behind it."""
    if fn_name is None:
        return code
    return f"{code}\n\n{_driver()}\n\n_judge_call({fn_name!r})\n"


@functools.cache
def _driver() -> str:
    """The driver's functions as text."""
    text = Path(call_driver.__file__).read_text(encoding="utf-8")
    # A decorator at the program's end stays the error that it is: `pass` cannot be decorated.
    return "pass\n\n" + text[text.index("def _judge_json") :].rstrip()
