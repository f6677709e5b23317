"""What graders of public data sets give to programs: the imports, and a higher limit on recursion.

The graders of LiveCodeBench, APPS and TACO put such lines before each program, so that many recorded programs use
`math` or `List` without an import. The paper's judge has none (`JudgeSettings.prelude`). The imports run only for a
program that may need them, because in each test of a program they cost more than the test.
"""

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
GRADERS = (
    "".join(f"from {name} import *\n" for name in _STAR)
    + "".join(f"import {name}\n" for name in _MODULES)
    + "from time import sleep\n"
    + f"__import__('sys').setrecursionlimit({RECURSION_LIMIT})\n"
)
"""The lines as a suite's `prelude`."""


# The same for the judge: the names are added to those that are built in, so that a program's own always come first.
_NAMES = (
    "def _judge_names():\n    import builtins\n    names = {}\n"
    f"    exec({GRADERS.partition('__import__')[0]!r}, names)\n"
    "    for name, value in names.items(): builtins.__dict__.setdefault(name, value)\n"
    "_judge_names()\ndel _judge_names\n"
)
_RECURSION = GRADERS[GRADERS.index("__import__") :]


def prelude_of(suite: TestSuite, settings: JudgeSettings) -> tuple[str, str]:
    """What runs before a program of a suite that may use a name without having defined it, and before every program."""
    if suite.prelude == GRADERS or (suite.prelude is None and settings.prelude == "graders"):
        # The scripts of assertions use names, too.
        return ("", _NAMES + _RECURSION) if suite.asserts else (_NAMES, _RECURSION)
    return "", suite.prelude or ""
