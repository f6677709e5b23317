"""From a program's source to its end as a script: compilation, the state a fresh script finds, the exit.

Compiling executes nothing of the program. What runs it is `start`; processes and limits are `zygote`'s.
"""

# pathlib would be loaded into every program's process.

import ast
import builtins
import contextlib
import gc
import sys
import traceback
import types
import warnings
from _weakref import ref as reference
from atexit import _run_exitfuncs as _run_exit_handlers
from collections.abc import Callable, Iterable, Iterator
from os import _exit
from sys import __excepthook__ as _print_exception
from sys import getrecursionlimit as _recursion_limit
from sys import setrecursionlimit as _set_recursion_limit
from typing import Any

FILE_NAME = "main.py"

_FUTURE_FLAGS = 0x1FF0000  # the compiler flags that `from __future__` sets


class CompileFailure(Exception):
    """The source is no program; the message is what Python prints for it."""


def compile_source(source: bytes, allow_top_level_return: bool) -> list[types.CodeType]:
    """Compile a program into one or two pieces, to be executed in order in one namespace.

    There are two when a `return` outside a function is allowed and present: what stands before it, and the
    rest as the body of a function whose every name is global.

    Raises:
        CompileFailure: a syntax error, or a source that exceeds the compiler's limits.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return [compile(source, FILE_NAME, "exec", dont_inherit=True)]
            except SyntaxError as error:
                if not (allow_top_level_return and error.msg == "'return' outside function"):
                    raise
                return _compile_with_return(source)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise CompileFailure("".join(traceback.format_exception_only(error))) from None


def _compile_with_return(source: bytes) -> list[types.CodeType]:
    tree = ast.parse(source, FILE_NAME)
    first = next(place for place, statement in enumerate(tree.body) if _returns(statement))
    before = ast.Module(tree.body[:first], tree.type_ignores)
    codes = [compile(before, FILE_NAME, "exec", dont_inherit=True)]
    rest = [_ModuleStatements().visit(statement) for statement in tree.body[first:]]
    names = sorted({name for statement in rest for name in _bound_names(statement)})
    body: list[ast.stmt] = [ast.Global(names), *rest] if names else rest
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef("program", nothing, body, [])
    module = ast.fix_missing_locations(ast.Module([function], []))
    flags = codes[0].co_flags & _FUTURE_FLAGS
    outer = compile(module, FILE_NAME, "exec", flags, dont_inherit=True)
    inner = next(item for item in outer.co_consts if isinstance(item, types.CodeType))
    codes.append(inner.replace(co_name="<module>", co_qualname="<module>"))
    return codes


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _returns(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return True
    return not isinstance(node, _SCOPES) and any(_returns(child) for child in ast.iter_child_nodes(node))


class _ModuleStatements(ast.NodeTransformer):
    """Rewrites what may stand in a module but not in a function whose names are global."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a module's statement binds in the module's namespace, in its decorators excepted."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Lambda():
            return
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            # A comprehension's own variables stay inside it; an assignment expression's leave it.
            for child in ast.walk(node):
                if isinstance(child, ast.NamedExpr):
                    yield child.target.id
            return
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            for alias in aliases:
                yield alias.asname or alias.name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case _:
            pass
    for item in ast.iter_child_nodes(node):
        yield from _bound_names(item)


def prepare(packages: str | None, hidden_modules: list[str], folder: str) -> None:
    """Give this process, but for its `__main__`, the state that a script in `folder` finds at its start."""
    for name in hidden_modules:
        sys.modules.pop(name, None)
    sys.argv[:] = [FILE_NAME]
    sys.path.insert(0, folder)
    if packages is not None:
        sys.path.append(packages)


def start_afresh(folder: str, shadowed: Iterable[str] = ()) -> dict[str, Any]:
    """What each process of a prepared program does for itself; returns the namespace of its `__main__`.

    Args:
        folder: The script's.
        shadowed: Modules that lie beside the script, and so come before the library's.
    """
    for name in shadowed:
        sys.modules.pop(name, None)
    if "random" in sys.modules:
        sys.modules["random"].seed()  # or each test would draw the same numbers
    # Made here, after everything older was put out of the collector's sight: it can be collected at the end.
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=f"{folder}/{FILE_NAME}", __annotations__={})
    sys.modules["__main__"] = module
    gc.enable()
    return module.__dict__


def _exit_status(error: SystemExit) -> int:
    """The exit status that Python gives for `SystemExit`, its message printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        # Python takes a number that C has no type for as -1.
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    _complain(error.code)
    return 1


def report(error: BaseException) -> int:
    """Print an uncaught exception as Python does, without the frames that ran the program; returns the exit status."""
    _allow_depth()
    if isinstance(error, SystemExit):
        return _exit_status(error)
    _shorten(error)
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
    return 1


def leave(status: int) -> None:
    """End the process as the interpreter would: threads, exit handlers, buffers, then the program's objects.

    The whole interpreter is not torn down, because the process ends with it; the program's own objects are,
    since files that it left open are written when they are freed. Nobody else may hold its namespace.
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
    if not isinstance(module, types.ModuleType):
        return
    alive = reference(module)
    del module
    gc.collect()  # finalizers see the names of the program as they were
    module = alive()
    if module is None:
        return
    # Something holds it: its names are cleared one after the other, as Python does then.
    namespace = module.__dict__
    for private in (True, False):
        for name in [name for name in namespace if name.startswith("_") == private and name != "__builtins__"]:
            namespace[name] = None
    gc.collect()


def _allow_depth() -> None:
    """A program may have left too little for what follows it."""
    _set_recursion_limit(max(1000, _recursion_limit()))


def _shorten(error: BaseException) -> None:
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _survive(action: Callable[[], object]) -> None:
    """Whatever a program's own hooks raise, the process goes on to its end."""
    with contextlib.suppress(BaseException):
        action()


def _complain(message: object) -> None:
    """Write a line to standard error, if there is one that works."""
    _survive(lambda: sys.stderr.write(f"{message}\n"))


def _flush(name: str, status: int) -> int:
    """Flush one of the streams of `sys`; Python turns a failure to write the output into status 120."""
    try:
        stream = getattr(sys, name, None)
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except BaseException:  # noqa: BLE001 - the stream may be the program's own
        return 120
    return status
