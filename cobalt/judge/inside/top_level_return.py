"""Compilation of programs that return outside a function, as some graders allow; loaded only for these."""

import ast
import types
from collections.abc import Iterator
from typing import Any

_FUTURE_FLAGS = 0x1FF0000  # the compiler flags that `from __future__` sets


def compile_with_return(source: str, file_name: str) -> list[types.CodeType] | None:
    """The two pieces of such a program; see `program.compile_source`, which lists the errors.

    None if no statement of the module returns but one of a class body does, which no grader allows.
    """
    tree = ast.parse(source, file_name)
    first = next((place for place, statement in enumerate(tree.body) if _returns(statement)), None)
    if first is None:
        return None
    before = ast.Module(tree.body[:first], tree.type_ignores)
    codes = [compile(before, file_name, "exec", dont_inherit=True)]
    rest = [_ModuleStatements().visit(statement) for statement in tree.body[first:]]
    names = sorted({name for statement in rest for name in _bound_names(statement)})
    body: list[ast.stmt] = [ast.Global(names), *rest] if names else rest
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef("program", nothing, body, [])
    module = ast.fix_missing_locations(ast.Module([function], []))
    flags = codes[0].co_flags & _FUTURE_FLAGS
    outer = compile(module, file_name, "exec", flags, dont_inherit=True)
    inner = next(item for item in outer.co_consts if isinstance(item, types.CodeType))
    inner = inner.replace(co_name="<module>")
    codes.append(inner.replace(co_qualname="<module>") if hasattr(inner, "co_qualname") else inner)  # from 3.11 on
    return codes


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _returns(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return True
    return not isinstance(node, _SCOPES) and any(_returns(child) for child in ast.iter_child_nodes(node))


class _ModuleStatements(ast.NodeTransformer):
    """Rewrites statements that are allowed in a module but not in a function whose names are global."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _SCOPES):
            return node
        if isinstance(node, ast.Global):
            return ast.copy_location(ast.Pass(), node)
        if isinstance(node, ast.AnnAssign):
            plain: ast.stmt = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
            return ast.copy_location(plain, node)
        return super().visit(node)


def _bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a module's statement binds in the module's namespace, except in its decorators."""
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
