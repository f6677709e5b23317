"""How many different programs a model writes for a problem: programs are the same if their normalised syntax trees are.

The normalised tree has no comments, docstrings, blank lines or redundant brackets. The names that the program itself
gives to variables, parameters and functions are replaced by their order of appearance, so that programs that differ in
such names only are the same. Attributes, methods, modules and built-in names keep their names. Nothing is run, and
programs that compute the same in another way count as different.
"""

import ast
import warnings
from collections.abc import Iterable


def distinct_programs(programs: Iterable[str]) -> int:
    """How many different programs there are; those that are not Python are compared as stripped texts."""
    return len(set(map(normalised, programs)))


def normalised(program: str) -> str:
    """A text that is the same for programs that count as the same."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(program)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _drop_docstring(node)
        _rename(tree)
        return ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program.strip()


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:] or [ast.Pass()]


_NAMES: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.alias: "asname",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
"""The field of each kind of node in which a name can stand that the program gives; it may be None."""


def _rename(tree: ast.Module) -> None:
    """Replace the names that the program defines, each by the same number everywhere."""
    bound = _bound_names(tree) - _names_in_classes(tree)
    numbers: dict[str, str] = {}
    own: set[int] = set()  # keywords in calls of the program's functions; those in other calls are not its own names

    def number(name: str) -> str:
        return numbers.setdefault(name, f"_{len(numbers)}") if name in bound else name

    for node in ast.walk(tree):  # each node before its children
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in bound:
            own |= set(map(id, node.keywords))
        elif isinstance(node, ast.keyword) and node.arg is not None and id(node) in own:
            node.arg = number(node.arg)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [number(name) for name in node.names]
        elif (field := _NAMES.get(type(node))) and getattr(node, field) is not None:
            setattr(node, field, number(getattr(node, field)))


def _bound_names(tree: ast.Module) -> set[str]:
    """The names that a program gives to something."""
    binding = (node for node in ast.walk(tree) if not isinstance(getattr(node, "ctx", None), ast.Load))
    return {getattr(node, _NAMES[type(node)]) for node in binding if type(node) in _NAMES} - {None}


def _names_in_classes(tree: ast.Module) -> set[str]:
    """Names by which other than variables are reached: methods, attributes of classes, and keywords of method calls."""
    bodies = [node for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in owner.body]
    methods = {node.name for node in bodies if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = (node for body in bodies if isinstance(body, ast.Assign | ast.AnnAssign) for node in ast.walk(body))
    attributes = {node.id for node in assigned if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    parameters = {child.arg for body in bodies for child in ast.walk(body) if isinstance(child, ast.arg)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return methods | attributes | (parameters & {keyword.arg for call in calls for keyword in call.keywords})
