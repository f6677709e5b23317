"""The driver that calls a program's function: the judge appends this file's functions to the program.

The driver runs in the sandbox, in the program's namespace, where the program may have redefined any built-in name.
So every built-in is looked up in `builtins`, and annotations are strings, which are never evaluated. Standard output
is replaced by the function's value, as in the official graders of function problems. When the function or the driver
fails, what the program wrote stays, and the error is shown with the program's own frames only.
"""

from typing import Any


def _judge_json(value: "Any") -> "Any":
    """The value in types of JSON, such that values that are equal by Python's `==` have equal texts.

    Tuples become lists, and floats without a fraction integers, if they are exact. Other kinds of numbers (a fraction,
    a decimal, those of numpy) become integers and floats. Keys are sorted.
    """
    import builtins
    import json

    if builtins.isinstance(value, builtins.float) and value.is_integer() and -(2**53) < value < 2**53:
        return builtins.int(value)
    if builtins.isinstance(value, builtins.list | builtins.tuple):
        return [_judge_json(item) for item in value]
    if builtins.isinstance(value, builtins.dict):
        named = {
            key if builtins.isinstance(key, builtins.str) else json.dumps(_judge_json(key)): _judge_json(item)
            for key, item in value.items()
        }
        return {key: named[key] for key in builtins.sorted(named)}
    if builtins.isinstance(value, builtins.complex) and value.imag == 0:
        return _judge_json(value.real)
    kind = builtins.type(value)
    if builtins.hasattr(kind, "__index__") and not builtins.isinstance(value, builtins.int):
        return kind.__index__(value)
    if builtins.hasattr(kind, "__float__") and not builtins.isinstance(value, (builtins.int, builtins.float)):
        number = kind.__float__(value)
        whole = number.is_integer() and builtins.int(value)
        return whole if whole is not False and whole == value else number
    return value


def _judge_input() -> "str":
    """The whole standard input, even if the program has already read it."""
    import builtins
    import posix

    posix.lseek(0, 0, 0)
    with builtins.open(0, "rb", closefd=False) as stream:
        return stream.read().decode("utf-8", "surrogatepass")


def _judge_function(names: "Any", name: "str") -> "Any":
    """The program's function of that name, or the method of that name of its class `Solution`."""
    import builtins

    solution = names.get("Solution")
    if builtins.hasattr(solution, name):
        return builtins.getattr(solution(), name)
    if name in names:
        return names[name]
    raise builtins.NameError(f"the program defines neither a function {name!r} nor a class Solution that has it")


def _judge_answer(text: "str") -> "None":
    """Replace standard output by the text, after a mark that says that a value was returned, and end the process.

    Nothing of the program runs afterwards that could write more: no exit handlers, no buffers, no threads.
    """
    import builtins
    import posix

    # From here on threads cannot write. No new descriptor is opened, because the program may have used them all.
    posix.dup2(1, 0)
    posix.close(1)
    posix.closerange(3, posix.sysconf("SC_OPEN_MAX"))
    answer = builtins.memoryview(b"\x1e" + text.encode())
    written = 0
    while written < answer.nbytes:
        written += posix.pwrite(0, answer[written:], written)
    posix.ftruncate(0, written)
    posix._exit(0)


def _judge_fail(error: "BaseException", calling: "bool") -> "None":
    """End the program as an uncaught exception does; the traceback has the program's frames, if it was being called."""
    import builtins
    import sys

    trace: Any = error.__traceback__ if calling else None
    while trace is not None and trace.tb_frame.f_code.co_filename in ("driver.py", "<test>"):
        trace = trace.tb_next
    if builtins.isinstance(error, builtins.SystemExit):
        raise error
    sys.setrecursionlimit(builtins.max(1000, sys.getrecursionlimit()))
    # Not by assignment, which fails if the exception is a frozen data class.
    builtins.BaseException.with_traceback(error, trace)
    try:
        sys.excepthook(builtins.type(error), error, trace)
    except builtins.SystemExit:
        raise
    except builtins.BaseException:  # noqa: BLE001 - the hook is the program's own
        sys.__excepthook__(builtins.type(error), error, trace)
    raise builtins.SystemExit(1)


def _judge_call(name: "str") -> "None":
    """Read the arguments, call the program's function of that name, and leave its value as the output."""
    import builtins
    import json
    import sys

    sys.set_int_max_str_digits(0)
    calling = False  # whether an error's frames are those of the program
    try:
        arguments = [json.loads(line) for line in _judge_input().split("\n") if line.strip()]
        calling = True
        value = _judge_function(_judge_call.__globals__, name)(*arguments)
        calling = False
        sys.setrecursionlimit(builtins.max(1000, sys.getrecursionlimit()))
        try:
            text = json.dumps(_judge_json(value))
        except builtins.TypeError as error:
            if builtins.type(value).__name__ == "coroutine":
                value.close()  # otherwise Python warns about it and names a line of this driver
            raise builtins.TypeError(f"the value that {name} returned cannot be compared: {error}") from None
        _judge_answer(text + "\n")
    except builtins.BaseException as error:  # noqa: BLE001 - this is the program's end
        _judge_fail(error, calling)
