"""What graders of public data sets give to programs: the imports, and a higher limit on recursion.

The graders of LiveCodeBench, APPS and TACO put such lines before each program, so that many recorded programs use
`math` or `List` without an import. The paper's judge has none (`JudgeSettings.prelude`). The imports run only for a
program that uses a name which it defines nowhere, because in each test of a program they cost more than the test.
This module runs nothing.
"""

from cobalt.judge.settings import JudgeSettings
from cobalt.problem import TestSuite

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
GRADERS = (
    "".join(f"from {name} import *\n" for name in _STAR)
    + "".join(f"import {name}\n" for name in _MODULES)
    + "from time import sleep\n"
    + f"__import__('sys').setrecursionlimit({RECURSION_LIMIT})\n"
)
"""The lines as a suite's `prelude`."""


def prelude_of(suite: TestSuite, settings: JudgeSettings) -> tuple[str, str]:
    """What runs before a program of a suite, in two parts: imports, and what follows them.

    Returns:
        The lines at the head of the prelude that are whole import statements; only a program that uses a name which
        nothing defines needs them. And the rest, which runs before every program.
    """
    text = suite.prelude
    if text is None:
        text = GRADERS if settings.prelude == "graders" else ""
    lines = text.splitlines(keepends=True)
    count = next((number for number, line in enumerate(lines) if not _is_import(line)), len(lines))
    return "".join(lines[:count]), "".join(lines[count:])


def _is_import(line: str) -> bool:
    return line.startswith(("import ", "from ")) and not line.rstrip().endswith(("\\", "(", ",")) and ";" not in line
