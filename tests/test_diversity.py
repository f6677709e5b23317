"""Programs are the same if their normalised syntax trees are."""

# Whole programs stand on one line each.
# ruff: noqa: E501

import re

import pytest

from cobalt.rollout.diversity import distinct_programs, normalised

BASE = "import math\ndef area(radius):\n    result = math.pi * radius ** 2\n    return result\n"

SAME = {
    "comments and blank lines": "import math\n\n# why\ndef area(radius):\n    result = (math.pi * radius ** 2)  # here\n\n    return result",
    "a docstring": 'import math\ndef area(radius):\n    """The area."""\n    result = math.pi * radius ** 2\n    return result',
    "a docstring of the program": '"""Areas."""\n' + BASE,
}  # fmt: skip
RENAMED = {
    "a variable": BASE.replace("result", "x"),
    "a parameter": BASE.replace("radius", "r"),
    "the function": BASE.replace("area", "surface"),
    "names exchanged": BASE.replace("result", "?").replace("radius", "result").replace("?", "radius"),
}
DIFFERENT = {
    "another constant": BASE.replace("2", "3"),
    "another module's name": BASE.replace("math", "cmath"),
    "another attribute": BASE.replace("pi", "tau"),
    "another statement": BASE.replace("return result", "print(result)"),
    "one name for two": BASE.replace("result", "radius"),
    "no Python": BASE + "(",
}


TABLE = [(SAME, 1), (RENAMED, 1), (DIFFERENT, 2)]


@pytest.mark.parametrize(("other", "count"), [(program, count) for table, count in TABLE for program in table.values()])
def test_neither_form_nor_names_of_variables_distinguish_programs(other, count):
    assert distinct_programs([BASE, other]) == count


def test_built_in_names_and_methods_keep_their_names():
    assert normalised("print(sum([1]))") != normalised("print(max([1]))")
    method = "class A:\n    def run(self): return 1\nprint(A().run())"
    assert normalised(method) == normalised(method.replace("A", "B").replace("self", "this"))
    assert normalised(method) != normalised(method.replace("run", "go"))


def test_methods_and_attributes_of_classes_keep_their_names_if_variables_have_the_same():
    method = "class A:\n    def {0}(self): return 1\n    def {1}(self): return 2\n{0} = {1} = A()\nprint({0}.run())"
    assert distinct_programs([method.format("run", "go"), method.format("go", "run")]) == 2
    attribute = "class A:\n    {0} = 1\n    {1}: int = 2\n{0} = {1} = A()\nprint({0}.x)"
    assert distinct_programs([attribute.format("x", "y"), attribute.format("y", "x")]) == 2


def test_keywords_of_built_in_functions_keep_their_names():
    program = "key = input()\nprint(sorted(key, key=lambda key: -ord(key)))"
    assert normalised(program) == normalised("t = input()\nprint(sorted(t, key=lambda t: -ord(t)))")


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
