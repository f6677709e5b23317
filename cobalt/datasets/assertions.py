"""Turn assertions about a reference program, such as those of MBPP, into tests of the judge.

An assertion is split into a script, which has its calls of the program's function, and a check, which is the assertion
itself (`cobalt.judge.asserting`). The syntax tree decides; nothing is run.
"""

import ast
import builtins
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence

from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError

_BUILTINS = frozenset(dir(builtins))
# In these the syntax tree does not say which calls are made, how often and in which order.
_UNORDERED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Dict, ast.IfExp)


def assertion_suite(assertions: Sequence[str], reference: str, setup: str = "", imports: str = "") -> TestSuite:
    """The suite of some assertions, one test for each.

    Args:
        assertions: `assert` statements that call the function to write, all the same one.
        reference: A right program. What it defines is the program's, and everything else the assertion's.
        setup: Code that runs in the program before each test.
        imports: Code that runs before `setup`, and before each assertion.

    Raises:
        UserError: some code is not Python, the calls cannot be told from the rest, or the setup has an expression.
    """
    setup = f"{imports}\n{setup}".strip()
    for statement in parsed(setup, "the setup").body:
        if isinstance(statement, ast.Expr):
            # The judge would take its value for what a call of the assertion returned.
            raise UserError(
                f"the setup has an expression statement ({ast.unparse(statement)!r:.100}): assign its value"
            )
    defined = defined_names(reference)
    tests = [_split(assertion, defined) for assertion in assertions]
    functions = {name for name, _, _ in tests}
    if len(functions) != 1:
        raise UserError(f"the assertions call {len(functions)} functions ({', '.join(sorted(functions))})")
    scripts = tuple(f"{setup}\n{script}".lstrip() for _, script, _ in tests)
    checks = tuple(f"{imports}\n{check}".lstrip() for _, _, check in tests)
    return TestSuite(scripts, checks, functions.pop(), True)


def defined_names(program: str) -> frozenset[str]:
    """The functions, classes and variables that a program defines at its top level."""
    names = set()
    for statement in parsed(program, "the reference").body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def imports_for(check: str, known: Collection[str]) -> str:
    """Imports of the standard library's modules that a check names without importing them; "" if there are none.

    In the original harnesses a check finds the modules that the program happens to import. The check gets the names in
    `known`. It must be Python, or UserError is raised.
    """
    tree = parsed(check, "the check")
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    aliases = [node for node in ast.walk(tree) if isinstance(node, ast.alias)]
    bound |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    missing = sorted((used - bound - set(known) - _BUILTINS) & sys.stdlib_module_names)
    return "".join(f"import {name}\n" for name in missing)


def _split(assertion: str, defined: Collection[str]) -> tuple[str, str, str]:
    """The function that an assertion calls, the script and the check."""
    assertion = assertion.strip()
    where = f"the assertion {assertion!r:.100}"
    tree = parsed(assertion, where)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.Assert):
        raise UserError(f"{where} is not one assert statement")
    calls = list(_outermost_calls(tree.body[0], defined, where))
    functions = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    if len(functions) != 1:
        raise UserError(f"{where} calls {len(functions)} functions of the reference, not one")
    script = "\n".join(ast.get_source_segment(assertion, call) or ast.unparse(call) for call in calls)
    check = assertion
    foreign = [call for call in calls if any(_names(part) - _BUILTINS for part in (*call.args, *call.keywords))]
    if foreign:
        # The check is run without the program and its objects, and does not need them.
        for call in foreign:
            call.args, call.keywords = [ast.Constant(...)], []
        check = ast.unparse(tree)
    name = functions.pop()
    return name, script, imports_for(check, {name}) + check


def _outermost_calls(node: ast.AST, defined: Collection[str], where: str) -> Iterator[ast.Call]:
    """The calls of defined names, in the order in which they are evaluated, without calls in their arguments."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
        yield node
        return
    if isinstance(node, _UNORDERED) and _names(node) & set(defined):
        raise UserError(f"{where} calls the function in a loop, a lambda or a dictionary, or under a condition")
    for child in ast.iter_child_nodes(node):
        yield from _outermost_calls(child, defined, where)


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def parsed(code: str, what: str) -> ast.Module:
    """The syntax tree of some code; raises UserError, which names the code as `what`, if it is not Python."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes in the data's strings
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{what} is not Python ({error})") from None
