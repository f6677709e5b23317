"""Called functions: their values are compared as values or checked by assertions, without the program.

Programs with their verdicts are in `data/programs`, which `test_judge_programs.py` judges.
"""

import json
import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.judge.asserting import check_suite, returned_values, shown_values
from cobalt.judge.calling import canonical_json
from cobalt.judge.inside.checker import CheckError, decode
from cobalt.judge.inside.script_driver import _judge_typed
from cobalt.judge.wire import JudgeRequest
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_canonical_json_is_equal_to_its_value_and_a_fixed_point(value):
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_have_the_same_text_exactly_when_python_calls_them_equal(left, right):
    assert (canonical_json(left) == canonical_json(right)) == (left == right)
    assert canonical_json(left) == canonical_json(left + 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [((1, (2.5, "a"), None, True), '[1, [2.5, "a"], null, true]'), (3.0, "3"), (-0.0, "0"),
     ({"b": 1, "a": 2, 3: (4,)}, '{"3": [4], "a": 2, "b": 1}')],
)  # fmt: skip
def test_canonical_json_of_values_that_are_no_json(value, text):
    assert canonical_json(value) == text
    with pytest.raises(TypeError):
        canonical_json([value, {1}])


# Values of assertion tests

KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.fractions() | st.tuples(st.integers())
VALUES = st.recursive(
    KEYS | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
    ),
    max_leaves=12,
)


def written(*values):
    """The text that the driver leaves for these values."""
    return json.dumps([_judge_typed(value) for value in values])


@given(VALUES)
def test_values_keep_their_types_and_are_shown_as_python_shows_them(value):
    [read] = decode(json.loads(written(value)))
    assert read == value
    assert type(read) is type(value)
    assert decode(json.loads(written(bytearray(b"a")))) == [b"a"]
    shown = shown_values(written(value))
    if not any(name in shown for name in ("Fraction", "Decimal", "complex", "bytes")):  # these are shown by their parts
        assert eval(shown, {"inf": math.inf}) == value


ITERATORS = [iter([0, 1]), (n for n in (0, 1)), map(int, "01")]
COLLECTIONS = [range(2), {0: 1, 1: 2}.keys(), deque([0, 1])]


@pytest.mark.parametrize("value", ITERATORS + COLLECTIONS)
def test_of_other_iterables_the_items_are_kept_and_they_equal_nothing(value):
    [read] = decode(json.loads(written(value)))
    assert [0, 1] != read != (0, 1)
    collection = value in COLLECTIONS  # an iterator gives its items once
    assert (tuple(read), tuple(read)) == ((0, 1), (0, 1) if collection else ())
    assert (hasattr(type(read), "__len__"), hasattr(type(read), "__next__")) == (collection, not collection)


@pytest.mark.parametrize(
    "text",
    ['{"object": []}', '{"set": [[1]]}', '{"tuple": 3}', '{"bytes": 99999999999}', '{"bytes": [300]}', '{"dict": [1]}',
     '{"Decimal": "x"}', '{"Fraction": [1, 0]}', '{"Fraction": ["1e999999999"]}', '{"complex": ["a"]}', "{}",
     '{"a": 1, "b": 2}'],
)  # fmt: skip
def test_forged_values_are_refused(text):
    with pytest.raises((CheckError, TypeError, ValueError, ArithmeticError)):
        decode(json.loads(text))
    assert isinstance(shown_values(f"[{text}]"), str)


ONE = TestSuite(("f(1)",), ("assert f(1) == 1",), "f", True)


@pytest.mark.parametrize("byte", [b"\xff", b"\0", b'"', b"\\", b"\n", b"\xc3\xa9"])
def test_what_a_program_writes_as_values_does_not_grow_on_its_way_to_the_check(byte):
    def size(values):
        return len(check_suite(ONE, {0: returned_values(values)}).inputs[0].encode())

    assert size(byte * 1000) <= size(b"") + len(byte * 1000)


@pytest.mark.parametrize("suite", [ONE, TestSuite(("1",), ("2",), "f"), TestSuite(("1",), ("2",))])
def test_a_suite_says_what_its_tests_are_and_survives_its_forms(suite):
    assert list(suite.to_record())[2:] == ["fn_name"] * bool(suite.fn_name) + ["asserts"] * suite.asserts
    assert TestSuite.parse(suite.to_json()) == suite
    assert JudgeRequest.parse(JudgeRequest("x", suite).to_payload()).suite == suite
    assert suite.select([0]) == suite
    assert suite.positions_of(suite) == [0]
    with pytest.raises(UserError):
        suite.positions_of(TestSuite(suite.inputs, suite.outputs, "g"))
