"""From a program's source to its end as a script: compilation, the state a fresh script finds, the exit.

Compiling executes nothing of the program. What runs it is `start`; processes and limits are `zygote`'s.
"""

# pathlib would be loaded into every program's process.

import ast
import atexit
import builtins
import gc
import sys
import traceback
import types
import warnings
from collections.abc import Iterator
from os import _exit

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


def prepare(packages: str | None, hidden_modules: list[str], folder: str) -> types.ModuleType:
    """Give this process the state that a script in `folder` finds at its start, and return its `__main__` module."""
    for name in hidden_modules:
        sys.modules.pop(name, None)
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=f"{folder}/{FILE_NAME}", __annotations__={})
    sys.modules["__main__"] = module
    sys.argv[:] = [FILE_NAME]
    sys.path.insert(0, folder)
    if packages is not None:
        sys.path.append(packages)
    return module


def start_afresh() -> None:
    """What each process of a prepared program does for itself."""
    if "random" in sys.modules:
        sys.modules["random"].seed()  # or each test would draw the same numbers
    gc.enable()


def exit_status(error: SystemExit) -> int:
    """The exit status that Python gives for `SystemExit`, its message printed."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        # Python takes a number that C has no type for as -1.
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def report(error: BaseException) -> None:
    """Print an uncaught exception as Python does, without the frame that ran the program."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    sys.excepthook(type(error), error, error.__traceback__)


def leave(module: types.ModuleType, status: int) -> None:
    """End the process as the interpreter would: threads, exit handlers, buffers, then the program's objects.

    The whole interpreter is not torn down, because the process ends with it; the program's own objects are,
    since files that it left open are written when they are freed.
    """
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
        status = _flush(sys.stdout, status)
        _flush(sys.stderr, status)
        namespace = module.__dict__
        for name in [name for name in namespace if name.startswith("_") and name != "__builtins__"]:
            namespace[name] = None
        for name in [name for name in namespace if not name.startswith("_")]:
            namespace[name] = None
        gc.collect()
        status = _flush(sys.__stdout__, status)
        _flush(sys.__stderr__, status)
    except BaseException:  # noqa: BLE001 - whatever a program's own hooks raise, the process ends here
        status = status or 1
    finally:
        _exit(status)


def _flush(stream: object, status: int) -> int:
    if stream is None or getattr(stream, "closed", False):
        return status
    try:
        stream.flush()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - Python, too, turns any failure to write the output into status 120
        return status or 120
    return status
