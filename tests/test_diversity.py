"""Programs are the same if their normalised syntax trees are."""

import re

import pytest

from cobalt.rollout.diversity import distinct_programs, normalised

BASE = "import math\ndef area(radius):\n    result = math.pi * radius ** 2\n    return result\n"
DOCUMENTED = BASE.replace("  result", '  """The area."""\n    result', 1)
EXCHANGED = BASE.replace("result", "?").replace("radius", "result").replace("?", "radius")
SAME = [
    BASE.replace("\n", "\n\n    # why\n").replace("radius ** 2", "(radius ** 2)"),
    *(DOCUMENTED, f'"""Areas."""\n{BASE}', EXCHANGED),
    *(BASE.replace(name, "x") for name in ("result", "radius", "area")),
]
OTHERS = {
    "2": "3",
    "math": "cmath",
    "pi": "tau",
    "return result": "print(result)",
    "result": "radius",
    "area(": "(area",
}

METHODS = "class A:\n    def {0}(self): return 1\n    def {1}(self): return 2\n{0} = {1} = A()\nprint({0}.run())"
ATTRIBUTES = "class A:\n    {0} = 1\n    {1}: int = 2\n{0} = {1} = A()\nprint({0}.x)"
METHOD = "class A:\n    def run(self): return 1\nprint(A().run())"
SORTED = "{0} = input()\nprint(sorted({0}, key=lambda {0}: -ord({0})))"

TABLE = [
    *((BASE, other, 1) for other in SAME),
    *((BASE, BASE.replace(part, other), 2) for part, other in OTHERS.items()),
    ("print(sum([1]))", "print(max([1]))", 2),
    (METHOD, METHOD.replace("A", "B").replace("self", "this"), 1),
    (METHOD, METHOD.replace("run", "go"), 2),
    # Variables may have the names of methods and attributes, and of keywords.
    (METHODS.format("run", "go"), METHODS.format("go", "run"), 2),
    (ATTRIBUTES.format("x", "y"), ATTRIBUTES.format("y", "x"), 2),
    (SORTED.format("key"), SORTED.format("t"), 1),
]


@pytest.mark.parametrize(("first", "second", "count"), TABLE)
def test_neither_form_nor_names_that_a_program_gives_distinguish_it(first, second, count):
    assert distinct_programs([first, second]) == count


def test_every_kind_of_binding_is_renamed():
    program = """
import numpy as np
def f(a, *b, c=1, **d):
    global g
    g = [x for x in b if x]
    try:
        with open(a) as h: return lambda i: i + np.sum(g)
    except OSError as e:
        raise ValueError(e) from e
    match c:
        case [k, *l]: return f(a, c=k)
        case {"y": z, **w}: return w, z
        case m: return m
"""
    other = program
    for old, new in zip("abcdghiklmexzw", "ABCDGHIKLMEXZW", strict=True):
        other = re.sub(rf"\b{old}\b", new, other)
    assert other != program
    assert normalised(program) == normalised(other)


def test_text_that_is_not_a_program_is_compared_as_text():
    assert distinct_programs([" def f(", "def f(", "def g("]) == 2
    assert distinct_programs([]) == 0
