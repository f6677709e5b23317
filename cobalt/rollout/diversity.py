"""Count the different programs of a model for a problem: programs are the same if their normalised syntax trees are.

The normalised tree has no comments, docstrings, blank lines or redundant brackets. The names that the program itself
gives to variables, parameters, functions and classes are replaced by their order of appearance, so that programs that
differ in such names only are the same. All other names stay: those of attributes, methods, modules and built-ins, of
keywords in calls, and in `except`, `global` and `match`. Nothing is run, and programs that compute the same in another
way count as different.
"""

import ast
import warnings
from collections.abc import Iterable

_NAMES: dict[type[ast.AST], str] = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name", ast.ClassDef: "name"}
"""The field of each kind of node in which a name can stand that the program gives."""


def distinct_programs(programs: Iterable[str]) -> int:
    """Number of different programs; those that are not Python are compared as stripped texts."""
    return len(set(map(normalised, programs)))


def normalised(program: str) -> str:
    """A text that is the same for programs that count as the same."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(program)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        _rename(tree)
        return ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return program.strip()


def _rename(tree: ast.Module) -> None:
    """Replace the names that the program defines, each by the same number everywhere."""
    bound = {_name(node) for node in ast.walk(tree) if not isinstance(getattr(node, "ctx", None), ast.Load)}
    bodies = [node for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in owner.body]
    members = (node for each in bodies for node in ([each] if isinstance(each, ast.FunctionDef) else ast.walk(each)))
    # By these names other things than variables are reached.
    bound -= {None, *map(_name, members), *(node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword))}
    numbers: dict[str, str] = {}
    for node in ast.walk(tree):
        if (name := _name(node)) in bound and name is not None:
            setattr(node, _NAMES[type(node)], numbers.setdefault(name, f"_{len(numbers)}"))


def _name(node: ast.AST) -> str | None:
    return getattr(node, _NAMES[type(node)]) if type(node) in _NAMES else None
