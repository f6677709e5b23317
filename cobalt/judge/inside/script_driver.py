"""The driver of assertion tests: it runs the script of a test in a program and leaves what the script's calls returned.

The judge appends this file's functions to the program, after those of `inside.call_driver`, whose rules hold here
too: every built-in is looked up in `builtins`, and annotations are strings. The driver knows no assertion. What it
writes is only read as data, so a program that replaces a part of it gains nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cobalt.judge.inside.call_driver import _judge_answer, _judge_fail, _judge_function, _judge_input


def _judge_typed(value: "Any") -> "Any":
    """The value in types of JSON from which `cobalt.judge.inside.checker.decode` makes an equal value of the same type.

    A value of a type that JSON lacks is an object with its type as the only key. A value of a class that extends a type
    becomes one of that type, so that no method of the program's decides whether two values are equal. Of other
    iterables only the items are kept, and whether they have a length.
    """
    import builtins
    import sys

    if value is None or builtins.isinstance(value, (builtins.int, builtins.float, builtins.str)):
        return value  # JSON's encoder writes a value of a class that extends these types as one of the type
    if builtins.isinstance(value, builtins.list):
        return [_judge_typed(item) for item in value]
    for kind in (builtins.tuple, builtins.set, builtins.frozenset):
        if builtins.isinstance(value, kind):
            return {kind.__name__: [_judge_typed(item) for item in value]}
    if builtins.isinstance(value, builtins.dict):
        return {"dict": [[_judge_typed(key), _judge_typed(item)] for key, item in value.items()]}
    if builtins.isinstance(value, builtins.complex):
        return {"complex": [value.real, value.imag]}
    if builtins.isinstance(value, (builtins.bytes, builtins.bytearray)):
        return {"bytes": builtins.list(value)}
    if "decimal" in sys.modules and builtins.isinstance(value, sys.modules["decimal"].Decimal):
        return {"Decimal": builtins.str(value)}
    if "fractions" in sys.modules and builtins.isinstance(value, sys.modules["fractions"].Fraction):
        return {"Fraction": [value.numerator, value.denominator]}
    if builtins.hasattr(builtins.type(value), "__iter__"):
        sized = builtins.hasattr(builtins.type(value), "__len__")
        return {"collection" if sized else "iterable": [_judge_typed(item) for item in value]}
    if builtins.type(value).__name__ == "coroutine":
        value.close()  # otherwise Python warns about it and names a line of this driver
    raise builtins.TypeError(f"a value of the type {builtins.type(value).__name__!r} cannot be compared")


def _judge_script(name: "str") -> "None":
    """Run the script on standard input, which calls `name`, and leave the values of its expression statements.

    It runs in the program's namespace, or, where the function is a method of `Solution`, in one of its own.
    """
    import _ast
    import builtins
    import json
    import sys

    sys.set_int_max_str_digits(0)
    calling = False  # whether an error's frames are those of the program
    names = _judge_script.__globals__
    try:
        syntax_tree_only = 0x400  # ast.PyCF_ONLY_AST, without the module's import
        script = builtins.compile(_judge_input(), "<test>", "exec", syntax_tree_only, True)
        calling = True
        function = _judge_function(names, name)
        if names.get(name) is not function:
            names = {**names, name: function}
        values = []
        for statement in script.body:
            if builtins.isinstance(statement, _ast.Expr):
                code = builtins.compile(_ast.Expression(statement.value), "<test>", "eval", 0, True)
                value = builtins.eval(code, names)
                calling = False
                sys.setrecursionlimit(builtins.max(1000, sys.getrecursionlimit()))
                values.append(_judge_typed(value))
                calling = True
            else:
                builtins.exec(builtins.compile(_ast.Module([statement], []), "<test>", "exec", 0, True), names)
        calling = False
        _judge_answer(json.dumps(values) + "\n")
    except builtins.BaseException as error:  # noqa: BLE001 - this is the program's end
        _judge_fail(error, calling)
