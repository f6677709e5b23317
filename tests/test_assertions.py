"""Assertions of data sets become tests: the calls in the script, everything else in the check."""

import pytest

from cobalt.datasets.assertions import assertion_suite, defined_names, imports_for
from cobalt.stage.errors import UserError

ADD = "def add(a, b):\n    return a + b"


def test_an_assertion_keeps_its_text_and_its_call_becomes_the_script():
    suite = assertion_suite(["assert add(1, 2) == 3", " assert  add( [1],[2] )==[1, 2]  "], ADD)
    assert suite.inputs == ("add(1, 2)", "add( [1],[2] )")
    assert suite.outputs == ("assert add(1, 2) == 3", "assert  add( [1],[2] )==[1, 2]")
    assert (suite.fn_name, suite.asserts) == ("add", True)


@pytest.mark.parametrize(
    ("assertion", "script"),
    [
        ("assert set(add([1], [2])) == {1, 2}", "add([1], [2])"),
        ("assert not add(0, 0)", "add(0, 0)"),
        ("assert add(1, 2) == add(2, 1)", "add(1, 2)\nadd(2, 1)"),
        ("assert add(add(1, 2), 3) == 6, 'no'", "add(add(1, 2), 3)"),
        ("assert add('é', 'b') == 'éb'", "add('é', 'b')"),
        ("assert add(1, 2) == (3 if len({1: int(2)}) else 4)", "add(1, 2)"),
    ],
)
def test_outermost_calls_are_the_script(assertion, script):
    suite = assertion_suite([assertion], ADD)
    assert suite.inputs == (script,)


def test_a_check_does_not_need_the_objects_of_the_program():
    program = "class Node:\n    pass\ndef depth(node):\n    return 1"
    suite = assertion_suite(["assert (depth(root)) == 1"], program, "root = Node()\r\n")
    assert suite.inputs == ("root = Node()\ndepth(root)",)
    assert suite.outputs == ("assert depth(...) == 1",)
    one_of_two = assertion_suite(["assert depth(key=root) == depth(1)"], program, "root = Node()")
    assert one_of_two.outputs == ("assert depth(...) == depth(1)",)
    built_in = assertion_suite(["assert add(int, 2) == 1"], ADD)
    assert built_in.outputs == ("assert add(int, 2) == 1",)


def test_modules_that_a_check_names_are_imported():
    suite = assertion_suite(["assert math.isclose(add(1, 2), 3.0)"], ADD)
    assert suite.outputs == ("import math\nassert math.isclose(add(1, 2), 3.0)",)
    assert (
        imports_for("import math\nx = sys.maxsize + math.pi\nfor string in f(): print(string)", {"f"}) == "import sys\n"
    )


@pytest.mark.parametrize(
    "assertions",
    [
        ["assert other(1) == 1"],
        ["assert 1 == 1"],
        ["print(add(1, 2))"],
        ["assert add(1, 2) == 3; assert add(1, 2) == 3"],
        ["assert add(1, 2) == "],
        ["assert all(add(n, 1) > n for n in range(3))"],
        ["assert {add(1, 2): add(3, 4), add(5, 6): add(7, 8)} == {3: 7, 11: 15}"],
        ["assert (add(1, 2) if flag else add(3, 4)) == 3"],
        ["assert add(1, 2) == 3", "assert sub(1, 2) == 3"],
        [],
    ],
)
def test_assertions_that_cannot_be_split_are_refused(assertions):
    with pytest.raises(UserError):
        assertion_suite(assertions, ADD + "\nsub = add")


@pytest.mark.parametrize("setup", ["import random\nrandom.seed(0)", "'text'", "add(1, 2)", "x = ("])
def test_a_setup_whose_values_would_be_taken_for_those_of_calls_or_that_is_not_python_is_refused(setup):
    with pytest.raises(UserError, match="setup"):
        assertion_suite(["assert add(1, 2) == 3"], ADD, setup)
    with pytest.raises(UserError):
        defined_names("def add(a, b:")
