"""A program as a script: its compilation, the interpreter state that it finds at its start, and its exit.

Compiling executes nothing of the program. `start` runs it; `zygote` has the processes and limits.
"""

# Every module imported here is in every program's process. Modules that few programs need are imported where needed.
# ruff: noqa: SIM105 - `contextlib` is one of them

from __future__ import annotations

import builtins
import gc
import sys
from _io import StringIO
from _weakref import ref as reference
from atexit import _run_exitfuncs as _run_exit_handlers
from os import _exit
from sys import __excepthook__ as _print_exception
from sys import getrecursionlimit as _recursion_limit
from sys import setrecursionlimit as _set_recursion_limit
from types import CodeType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FILE_NAME = "main.py"

# What compiling raises for a source that is not a valid program, or that exceeds the compiler's limits.
FAILURES = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)
# Characters kept of each end of a compiler's message: the message may quote the source, which may be one long line.
_MESSAGE_END = 4096
_MOST_WARNINGS = 100  # lines of a compiler's warnings that are kept

_BUILT_IN = frozenset(dir(builtins))

_paper_guard: Any = None


def prepare_paper_guard() -> None:
    """Load the authors' guard while its file can still be read; it applies to every program from then on."""
    global _paper_guard
    from . import paper_guard as _paper_guard


def compile_source(source: bytes, limits: dict[str, Any]) -> tuple[list[CodeType], bytes]:
    """Compile a program and its driver into pieces, to be executed in order in one namespace.

    If a `return` outside a function is allowed and present, the program itself has two pieces: the statements before
    it, and the rest as the body of a function in which every name is global. Returns also the compiler's warnings, if
    the limits ask for them.

    Raises:
        SyntaxError, ValueError, OverflowError, RecursionError, MemoryError: the kinds in `FAILURES`.
    """
    text = text_of(source)
    stderr, printed = sys.stderr, StringIO()
    sys.stderr = printed if limits["syntax_warnings"] else None
    try:
        codes = [_compile(text)]
    except SyntaxError as error:
        if not (limits["top_level_return"] and error.msg == "'return' outside function"):
            raise
        printed.seek(printed.truncate(0))  # it is compiled again
        from . import top_level_return  # it loads `ast`, which would make every program's process larger

        codes = top_level_return.compile_with_return(text, FILE_NAME)
        if not codes:
            raise
    finally:
        sys.stderr = stderr
    return codes + compile_text(limits["after"], "driver.py"), _with_source(printed.getvalue(), text)


def compile_text(text: str, file_name: str) -> list[CodeType]:
    """The code of what a suite puts before or after a program: one piece, or none for no text."""
    return [compile(text, file_name, "exec", dont_inherit=True)] if text else []


def give_names(imports: str) -> None:
    """Add what these lines import to the built-in names, so that a program's own names come first."""
    names: dict[str, Any] = {}
    exec(imports, names)
    for name, value in names.items():
        builtins.__dict__.setdefault(name, value)


def text_of(source: bytes) -> str:
    """A program as text, whatever encoding it declares: it comes from a response, and is sent as UTF-8."""
    text = source.decode("utf-8", "surrogatepass")
    return text if _paper_guard is not None else text.removeprefix("\ufeff")


def _compile(text: str) -> CodeType:
    if _paper_guard is not None:
        return _paper_guard.compile_after_guard(text, FILE_NAME)  # type: ignore[no-any-return]
    return compile(text, FILE_NAME, "exec", dont_inherit=True)


def _with_source(warnings: str, text: str) -> bytes:
    """The compiler's warnings as Python prints them for a file: each with the line of the program."""
    lines = text.split("\n")
    shown: list[str] = []
    for warning in warnings.removesuffix("\n").split("\n")[:_MOST_WARNINGS] if warnings else ():
        shown.append(warning)
        name, _, rest = warning.partition(":")
        number = rest.partition(":")[0]
        if name == FILE_NAME and number.isdigit() and 0 < int(number) <= len(lines):
            shown.append(f"  {lines[int(number) - 1].strip()[:_MESSAGE_END]}")
    return "".join(f"{line}\n" for line in shown).encode("utf-8", "replace")


def failure_text(error: BaseException, source: bytes) -> str:
    """Text that Python prints for a source that does not compile; a long text is cut to its two ends."""
    from traceback import format_exception_only

    if isinstance(error, SyntaxError) and error.text is None and error.filename == FILE_NAME and error.lineno:
        # What the compiler finds after parsing has no text, because it looks for the line in the program's file.
        error.text = (text_of(source).split("\n") + [""] * error.lineno)[error.lineno - 1]
    text = "".join(format_exception_only(error))
    return text if len(text) <= 2 * _MESSAGE_END else text[:_MESSAGE_END] + text[-_MESSAGE_END:]


def prepare(packages: str, folder: str) -> None:
    """Give this process the state that a script in `folder` finds at its start, except for `__main__`."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("inside", "ctypes", "_ctypes")]:
        del sys.modules[name]
    sys.argv[:] = [FILE_NAME]
    sys.path.insert(0, folder)
    if packages:
        sys.path.append(packages)


def start_afresh(folder: str, name: str) -> dict[str, Any]:
    """Finish the set-up in each process of a prepared program; returns the namespace of its module.

    Args:
        folder: The script's folder.
        name: Its `__name__`. With another than "__main__" its own main block does nothing.
    """
    if _paper_guard is not None:
        _paper_guard.apply()
    if "random" in sys.modules:
        sys.modules["random"].seed()  # otherwise each test would draw the same numbers
    # The module is made after `gc.freeze`, so that the collector can free it at the end.
    module = ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=f"{folder}/{FILE_NAME}", __cached__=None, __annotations__={})
    sys.modules["__main__"] = sys.modules[name] = module
    gc.enable()
    return module.__dict__


def _exit_status(error: SystemExit) -> int:
    """The exit status that Python gives for `SystemExit`; prints the exception's message, if any."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        # Python treats a number that does not fit into 64 bits as -1.
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    _complain(error.code)
    return 1


def report(error: BaseException) -> int:
    """Print an uncaught exception as Python does, without the frames that ran the program; return the exit status."""
    _allow_depth()
    if isinstance(error, SystemExit):
        return _exit_status(error)
    _shorten(error)
    if _paper_guard is not None:
        _paper_guard.hide_itself(error.__traceback__)
    added: dict[str, Any] = {}
    if isinstance(error, NameError) and sys.excepthook is _print_exception:
        added = {name: value for name, value in builtins.__dict__.items() if name not in _BUILT_IN}
    for name in added:
        del builtins.__dict__[name]  # Python would offer them as what was meant
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_status(leaving)
    except BaseException as failure:  # noqa: BLE001 - the program's own hook
        _shorten(failure)
        _complain("Error in sys.excepthook:")
        _print_exception(type(failure), failure, failure.__traceback__)
        _complain("\nOriginal exception was:")
        _print_exception(type(error), error, error.__traceback__)
    finally:
        builtins.__dict__.update(added)
    return 1


def leave(status: int) -> None:
    """End the process as the interpreter would: threads, exit handlers, buffers, then the program's objects.

    The objects are freed because files that the program left open are written at that point. The caller must hold no
    reference to the program's namespace.
    """
    _allow_depth()
    threading = sys.modules.get("threading")
    if threading is not None:
        _survive(threading._shutdown)
    _survive(_run_exit_handlers)
    status = _flush("stdout", status)
    status = _flush("stderr", status)
    _survive(_free_objects)
    status = _flush("__stdout__", status)
    status = _flush("__stderr__", status)
    _exit(status)


def _free_objects() -> None:
    module = sys.modules.pop("__main__", None)
    if not isinstance(module, ModuleType):
        return
    alive = reference(module)
    del module
    gc.collect()  # finalizers still see the program's names with their values
    module = alive()
    if module is None:
        return
    # Something still holds the module: clear its names one after the other, as Python does in that case.
    namespace = module.__dict__
    for private in (True, False):
        for name in [name for name in namespace if name.startswith("_") == private and name != "__builtins__"]:
            namespace[name] = None
    gc.collect()


def _allow_depth() -> None:
    """Raise the recursion limit, which the program may have lowered too far for the code that follows it."""
    _set_recursion_limit(max(1000, _recursion_limit()))


def _shorten(error: BaseException) -> None:
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _survive(action: Callable[[], object]) -> None:
    """Run an action and ignore what it raises: a program's own hooks cannot stop the process's exit."""
    try:
        action()
    except BaseException:  # noqa: BLE001 - there is no caller left to handle it
        pass


def _complain(message: object) -> None:
    """Write a line to standard error, if that still works."""
    _survive(lambda: sys.stderr.write(f"{message}\n"))


def _flush(name: str, status: int) -> int:
    """Flush one of the streams of `sys`; returns 120, as Python does, if the output cannot be written."""
    try:
        stream = getattr(sys, name, None)
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except BaseException:  # noqa: BLE001 - the stream may be the program's own
        return 120
    return status
