"""What stands behind a program whose function is called: the judge appends this file's functions to the program.

It runs in the sandbox, among the program's own names, which may hide any built-in one: everything is looked up in
`builtins`, and annotations are strings, which nobody looks up. It prints the function's value and nothing else; what
the program itself wrote to standard output is cleared, as in the official graders of function problems.
"""

from typing import Any


def _judge_json(value: "Any") -> "Any":
    """The value as JSON has it, such that equal values have equal texts.

    Tuples become lists. A float without a fraction becomes an integer, because Python's `==`, by which the official
    graders compare, holds between the two; other floats keep Python's `repr`. Keys are sorted.
    """
    import builtins
    import json

    if builtins.isinstance(value, builtins.float) and value.is_integer():
        return builtins.int(value)
    if builtins.isinstance(value, builtins.list | builtins.tuple):
        return [_judge_json(item) for item in value]
    if builtins.isinstance(value, builtins.dict):
        named = {
            key if builtins.isinstance(key, builtins.str) else json.dumps(_judge_json(key)): _judge_json(item)
            for key, item in value.items()
        }
        return {key: named[key] for key in builtins.sorted(named)}
    return value


def _judge_call(names: "Any", name: "str") -> "None":
    """Read arguments, one JSON value a line; call the function of that name in `names`; print what it returns."""
    import builtins
    import json
    import os
    import sys

    hook = sys.excepthook

    def show(kind: "Any", error: "Any", trace: "Any") -> "None":
        while trace is not None and trace.tb_frame.f_code.co_name in ("<module>", "_judge_call"):
            trace = trace.tb_next
        error.__traceback__ = trace
        hook(kind, error, trace)

    sys.set_int_max_str_digits(0)
    os.lseek(0, 0, os.SEEK_SET)  # the program may have read its input
    with builtins.open(0, "rb", closefd=False) as stream:
        lines = stream.read().decode("utf-8", "surrogatepass").split("\n")
    arguments = [json.loads(line) for line in lines if line.strip()]
    solution = names.get("Solution")
    sys.excepthook = show
    if builtins.hasattr(solution, name):
        function = builtins.getattr(solution(), name)
    elif name in names:
        function = names[name]
    else:
        raise builtins.NameError(f"the program defines neither a function {name!r} nor a class Solution that has it")
    value = function(*arguments)
    try:
        text = json.dumps(_judge_json(value))
    except builtins.TypeError as error:
        raise builtins.TypeError(f"the value that {name} returned cannot be compared: {error}") from None
    sys.stdout.flush()
    os.ftruncate(1, 0)
    os.lseek(1, 0, os.SEEK_SET)
    with builtins.open(1, "wb", closefd=False) as output:
        output.write(text.encode() + b"\n")
