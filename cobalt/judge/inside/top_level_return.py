"""Compilation of programs that return outside a function, as some graders allow; loaded only for these."""

import ast
import types
from typing import Any

_FUTURE_FLAGS = 0x1FF0000  # the compiler flags that `from __future__` sets
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def compile_with_return(source: str, file_name: str) -> list[types.CodeType]:
    """The two pieces of such a program; see `program.compile_source`.

    There are none if only a class body returns, which no grader allows.
    """
    tree = ast.parse(source, file_name)
    first = next((index for index, statement in enumerate(tree.body) if _returns(statement)), None)
    if first is None:
        return []
    before = compile(ast.Module(tree.body[:first], tree.type_ignores), file_name, "exec", dont_inherit=True)
    flags = before.co_flags & _FUTURE_FLAGS
    rest = [_WithoutAnnotations().visit(statement) for statement in tree.body[first:]]
    code = _as_function(rest, file_name, flags)
    names = sorted({*code.co_varnames, *code.co_cellvars})
    if names:  # they belong to the module
        code = _as_function([ast.Global(names), *rest], file_name, flags)
    code = code.replace(co_name="<module>")
    return [before, code.replace(co_qualname="<module>") if hasattr(code, "co_qualname") else code]  # from 3.11 on


def _returns(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return True
    return not isinstance(node, _SCOPES) and any(_returns(child) for child in ast.iter_child_nodes(node))


def _as_function(body: list[ast.stmt], file_name: str, flags: int) -> types.CodeType:
    """The code of a function with this body."""
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    module = ast.fix_missing_locations(ast.Module([ast.FunctionDef("program", nothing, body, [])], []))
    outer = compile(module, file_name, "exec", flags, dont_inherit=True)
    return next(item for item in outer.co_consts if isinstance(item, types.CodeType))


class _WithoutAnnotations(ast.NodeTransformer):
    """Makes annotated assignments plain ones, because a global name of a function cannot be annotated."""

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _SCOPES):
            return node
        if isinstance(node, ast.AnnAssign):
            plain: ast.stmt = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
            return ast.copy_location(plain, node)
        return super().visit(node)
