"""Code around a program, before and after it, and the names that graders of public data sets give.

The graders of LiveCodeBench, APPS and TACO put imports and a higher limit on recursion before each program, so that
many recorded programs use `math` or `List` without an import. The paper's judge has none (`JudgeSettings.prelude`).
"""

from typing import Any

from cobalt.judge.calling import call_driver_of
from cobalt.judge.settings import JudgeSettings
from cobalt.problems.problem import TestSuite

# Names of a later line replace those of an earlier one, as in the graders; the built-in names come last of all.
_STAR = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "fractions", "decimal", "typing", "builtins",
)  # fmt: skip
_MODULES = (
    "array", "bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "io",
    "itertools", "json", "math", "operator", "os", "random", "re", "statistics", "string", "sys", "time", "typing",
)  # fmt: skip
RECURSION_LIMIT = 50_000  # LiveCodeBench's
_IMPORTS = (
    "".join(f"from {name} import *\n" for name in _STAR)
    + "".join(f"import {name}\n" for name in _MODULES)
    + "from time import sleep\n"
)
_RECURSION = f"__import__('sys').setrecursionlimit({RECURSION_LIMIT})\n"
GRADERS = _IMPORTS + _RECURSION
"""The lines as a suite's `prelude`."""


def around_program(suite: TestSuite, settings: JudgeSettings) -> dict[str, Any]:
    """Code and settings around the programs of a suite, as the sandbox takes them.

    These are `imports`, whose names are added to the built-in ones, so that a program's own come first; the code that
    runs `before` and `after` it in its namespace; `module`, its `__name__`; and what its compilation and its standard
    input depend on.
    """
    graders = suite.prelude == GRADERS or (suite.prelude is None and settings.prelude == "graders")
    return {
        "imports": _IMPORTS if graders else "",
        "before": _RECURSION if graders else suite.prelude or "",
        "after": call_driver_of(suite.fn_name, suite.asserts),
        # Where a function is called, the program's own main block does not run, as in the graders.
        "module": "__main__" if suite.fn_name is None else "main",
        "top_level_return": suite.top_level_return or settings.allow_top_level_return,
        "syntax_warnings": settings.syntax_warnings,
        # A driver reads the input again from its start.
        "stdin_pipe": settings.stdin == "pipe" and suite.fn_name is None,
    }
