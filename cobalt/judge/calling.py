"""Function problems: the judge calls a function with typed arguments, and compares the value it returns.

Such a suite has `fn_name`. An input has one line for each argument, a JSON value; an expected output is the value in
canonical JSON. A driver that calls the function runs after the program, in its namespace. Assertion tests have another
driver (`cobalt.judge.asserting`).
"""

import functools
import inspect
import json
from types import ModuleType
from typing import Any

from cobalt.judge.inside import call_driver, script_driver
from cobalt.stage.rows import encode_json

# The driver writes this mark before a value. Output without the mark is that of a program which ended before its
# function returned.
VALUE_MARK = b"\x1e"


def canonical_json(value: Any) -> str:
    """The JSON text of an expected or returned value: the same for 2 and 2.0, different for True and 1.

    Raises:
        TypeError: the value has a type that JSON does not have.
    """
    return _json_text(call_driver._judge_json(value))


def call_input(arguments: list[Any]) -> str:
    """The input of one call: each argument as JSON on a line of its own."""
    return "".join(_json_text(argument) + "\n" for argument in arguments)


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except ValueError:  # an integer of more digits than Python writes
        return encode_json(value)


def call_driver_of(fn_name: str | None, asserts: bool = False) -> str:
    """The code that runs after a program and calls its function; "" where no function is called.

    With `asserts` the driver runs the script on standard input, which calls `fn_name`, instead of one call.
    """
    if fn_name is None:
        return ""
    driver = _functions_of(call_driver, "_judge_json")
    if asserts:
        return f"{driver}\n\n\n{_functions_of(script_driver, '_judge_typed')}\n\n_judge_script({fn_name!r})\n"
    return f"{driver}\n\n_judge_call({fn_name!r})\n"


@functools.cache
def _functions_of(driver: ModuleType, first: str) -> str:
    """The functions of a driver as text, from the one of that name on."""
    text = inspect.getsource(driver)
    return text[text.index(f"def {first}") :].rstrip()
