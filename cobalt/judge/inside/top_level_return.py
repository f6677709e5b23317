"""Compilation of programs that return outside a function, as some graders allow; loaded only for these."""

import ast
import types
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def compile_with_return(source: str, file_name: str) -> types.CodeType:
    """The code of such a program; each return outside a function ends it as `sys.exit()` does.

    Raises:
        SyntaxError: the body of a class returns, which no grader allows.
    """
    return compile(_Ending().visit(ast.parse(source, file_name)), file_name, "exec", dont_inherit=True)


class _Ending(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, _SCOPES):
            return node
        if not isinstance(node, ast.Return):
            return super().visit(node)
        value = [] if node.value is None else [ast.Expr(node.value)]
        end = ast.Raise(ast.Name("SystemExit", ast.Load()))
        return [ast.fix_missing_locations(ast.copy_location(statement, node)) for statement in (*value, end)]
