"""The rules of comparison: texts against the Kattis validator, JSON values, laws, and inputs made to be slow."""

import dataclasses
import itertools
import json
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobalt.judge import JudgeSettings, VerdictKind
from cobalt.judge.calling import VALUE_MARK, canonical_json
from cobalt.judge.comparison import outputs_match, values_match
from cobalt.judge.grading import grade
from cobalt.judge.sandbox.sandbox import Execution
from cobalt.problems.problem import TestSuite

STRIP = JudgeSettings()
LINES = JudgeSettings(comparison="lines")
FLOAT = JudgeSettings(comparison="float")
RULES = (STRIP, LINES, FLOAT)

# Outputs that Kattis's default validator accepts and rejects for an answer, by its flags, and those of them for which
# this judge's verdict is the other one, by its rule. From Kattis/problemtools, its tests/default_validator_tests and
# issue 193, from the vectors of RagnarGrootKoerkamp/BAPCtools for the same flags, and, from "float_tolerance 1e-6" on,
# our own. Verdicts are those of the validator's published algorithm.
KATTIS = json.loads((Path(__file__).parent / "data" / "kattis.json").read_text("utf-8"))


def like_kattis(flags: str) -> JudgeSettings:
    """The settings that are nearest to the validator's flags."""
    words = flags.split()
    if "space_change_sensitive" in words and "float" not in flags:
        return STRIP
    if "float" not in flags:
        return LINES
    value = {flag: float(number) for flag, number in itertools.pairwise(words) if flag.startswith("float")}
    both = value.get("float_tolerance", 0.0)
    absolute, relative = value.get("float_absolute_tolerance", both), value.get("float_relative_tolerance", both)
    return JudgeSettings(comparison="float", float_absolute=absolute, float_relative=relative)


@pytest.mark.parametrize("vector", KATTIS)
def test_verdicts_are_those_of_the_kattis_default_validator_but_for_named_differences(vector):
    different = {output for outputs in vector.get("different", {}).values() for output in outputs}
    assert different <= {*vector["accepted"], *vector["rejected"]}
    for output in (*vector["accepted"], *vector["rejected"]):
        wanted = (output in vector["accepted"]) is not (output in different)
        assert outputs_match(output.encode(), vector["answer"], like_kattis(vector["flags"])) is wanted, output


NO_NUMBERS = [
    *("1_000 1000", "١٢ 12", "１ 1", "1e1_0 1e10", "0x1 1", "1e 1", ". 0", "sNaN nan", "nan1 nan", "inf Infinity"),
    *("+inf inf", "inf 1e999", "1e999 inf", "ınf inf", "1\x00 1", "--1 1"),
]


@pytest.mark.parametrize("pair", NO_NUMBERS)
def test_only_plain_decimal_numbers_are_numbers(pair):
    output, expected = pair.split(" ")
    for settings in (LINES, FLOAT):
        assert not outputs_match(output.encode(), expected, settings)
        assert not outputs_match(expected.encode(), output, settings)


@pytest.mark.parametrize(
    ("output", "expected", "other"),
    [
        ("1e999999999", "10e999999998", "2e999999999"),
        ("1e-999999999", "0.1e-999999998", "2"),
        ("9" * 100_000 + ".0", "9" * 100_000, "9" * 99_999 + "8"),
        ("0e999999999", "0", "1e999999999"),
    ],
    ids=range(4),
)
def test_numbers_of_any_size_are_compared_exactly(output, expected, other):
    for settings in (LINES, FLOAT):
        assert outputs_match(output.encode(), expected, settings)
        assert not outputs_match(other.encode(), expected, settings)


TOKEN = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.from_regex(r"[+-]?[0-9_]{0,3}\.?[0-9]{0,3}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["nan", "NaN", "-nan", "inf", "INF", "Infinity", "infinity", "a", "A", "0x1", "١", "\0"]),
)
LINE = st.lists(TOKEN, max_size=3).flatmap(
    lambda tokens: st.sampled_from([" ", "  ", "\t"]).map(lambda s: s.join(tokens))
)
TEXT = st.lists(LINE, max_size=3).map("\n".join) | st.text(max_size=10) | st.text(alphabet="1 \r\n", max_size=6)


@given(TEXT, TEXT)
def test_strip_and_lines_do_not_depend_on_which_text_is_the_answer_and_each_rule_accepts_more(left, right):
    left, right = (text.encode("utf-8", "replace").decode() for text in (left, right))
    forwards, backwards = (
        [outputs_match(a.encode(), b, rule) for rule in RULES] for a, b in ((left, right), (right, left))
    )
    assert forwards[:2] == backwards[:2]
    assert forwards == sorted(forwards)


@given(TEXT, st.sampled_from(["", " ", "\n", "\t \r\n"]), st.sampled_from(["", " ", "\n\n", "\r\n"]))
def test_every_rule_accepts_the_answer_itself_and_white_space_around_it(text, before, after):
    text = text.encode("utf-8", "replace").decode()
    for settings in RULES:
        assert outputs_match(f"{before}{text}{after}".encode(), text, settings)


@given(st.lists(LINE, max_size=4), st.sampled_from(["\r\n", "\r"]))
def test_a_text_has_the_line_ends_that_text_mode_reads(lines, end):
    encoded, expected = end.join(lines).encode("utf-8", "replace"), "\n".join(lines)
    for settings in RULES:
        assert outputs_match(encoded, expected, settings)
        assert outputs_match(expected.encode("utf-8", "replace"), encoded.decode(), settings)


def test_line_ends_are_the_only_white_space_inside_that_strip_takes_for_another():
    assert not outputs_match(b"1\r\r\n2", "1\n2", STRIP)
    assert outputs_match(b"1\r\r\n2", "1\n\n2", STRIP)
    for space in (b"\x0b", b"\x0c", b"\x1c", "\u2028".encode(), b" "):
        assert not outputs_match(b"1" + space + b"2", "1\n2", STRIP)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(-2, 2))
def test_float_accepts_what_is_within_either_tolerance(number, factor):
    near = number + factor * FLOAT.float_absolute
    if abs(near - number) <= max(FLOAT.float_absolute, FLOAT.float_relative * abs(number)):
        assert outputs_match(repr(near).encode(), repr(number), FLOAT)
    else:
        assert not outputs_match(repr(near).encode(), repr(number), FLOAT)


MEGA = 10_000_000


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("12\n" * (MEGA // 3), "12\n" * (MEGA // 3) + "1"),
        ("1" + "\n" * MEGA + "1", "1"),
        ("1 " * (MEGA // 2), "1"),
        ("1" * MEGA + "x", "1" * MEGA + "y"),
        ("1" * MEGA + ".0", "1" * MEGA),
        ("." * MEGA, "1"),
        ("-" * MEGA, "1"),
        ("1e" + "9" * MEGA, "1"),
        ("0." + "0" * MEGA + "1", "0"),
        ("nan" * (MEGA // 3), "nan"),
        ("1e999999999", "1e-999999999"),
        ("1e999999999", "1" * 1000),
        ("[" * MEGA, "[[1]]"),
        ("[" + "[]," * (MEGA // 3) + "[]]", "[[]]"),
        ("9" * MEGA, "9"),
        ("[" + "9" * MEGA + "]", "[" + "9" * MEGA + ",1]"),
    ],
    ids=range(16),
)
def test_no_output_of_ten_megabytes_takes_seconds(output, expected):
    encoded = output.encode()
    for match in (outputs_match, values_match):
        for settings in RULES:
            begun = time.process_time()
            match(encoded, expected, settings)
            assert time.process_time() - begun < 2


# JSON values.


def nested(leaves):
    lists_of = partial(st.lists, max_size=3)
    objects = partial(st.dictionaries, st.sampled_from("ab"), max_size=2)
    return st.recursive(
        st.none() | st.booleans() | leaves, lambda inner: lists_of(inner) | objects(inner), max_leaves=6
    )


VALUE = nested(st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from([10**30, float("nan"), "a", "1"]))
FINITE = nested(st.integers(-2, 2) | st.sampled_from([0.5, 1.0, 1e300, 10**300, "a", ""]))


@given(FINITE, FINITE)
def test_values_match_exactly_when_python_calls_them_equal(left, right):
    for settings in (STRIP, LINES):
        assert values_match(canonical_json(left).encode(), canonical_json(right), settings) is (left == right)
        assert values_match(json.dumps(left, indent=1).encode(), json.dumps(right), settings) is (left == right)


@given(VALUE, VALUE)
def test_a_value_matches_itself_under_every_rule_and_equal_values_are_close_values(left, right):
    output, expected = canonical_json(left), canonical_json(right)
    for settings in RULES:
        assert values_match(output.encode(), output, settings)
        assert values_match(f" [{output} ]\n".encode(), f"[{output}]", settings)
    strip, lines, close = (values_match(output.encode(), expected, rule) for rule in RULES)
    assert strip is lines and strip <= close


def deep(value, depth):
    return "[" * depth + value + "]" * depth


NINES = "9" * 5000
# Outputs and expected values: equal by Python's `==`, or only within the tolerances, or neither.
EQUAL = ["[true, 0] ~ [1, false]", '{"a": true} ~ {"a": 1.0}', "[NaN, true] ~ [NaN, 1]", "[Infinity] ~ [ Infinity]"]
EQUAL += [f"[{NINES}] ~ [ {NINES}]", "anything ~ anything", f"{deep('1', 400)} ~ {deep('true', 400)}"]
EQUAL += [f"{deep('', 5000)} ~ {deep('', 5000)}"]
CLOSE = ["[0.30000000000000004, 1] ~ [0.3, 1]", '{"a": [[0.1000000001]]} ~ {"a": [[0.1]]}', f"1{'0' * 300} ~ 1e300"]
OTHER = [
    *("null ~ 0", '"1" ~ 1', "[] ~ {}", '"a b" ~ "a  b"', '"1.0" ~ "1"', "[0.31] ~ [0.3]", "[1, 2] ~ [1]"),
    *('{"1": 1} ~ {"1.0": 1}', "NaN ~ 0", "1 ~ NaN", "Infinity ~ 1e300", "Infinity ~ -Infinity", " ~ 1", "1 1 ~ 1"),
    *("[1 ~ [1 ]", "True ~ true", "1 ~ not JSON", '"\udcff" ~ "\N{REPLACEMENT CHARACTER}"'),
    f"{10**400 + 1} ~ {10**400}",
    f"[{10**9 + 1}] ~ [{10**9}]",  # a tolerance is for what was rounded
    f"{deep('1', 5000)} ~ {deep('true', 5000)}",  # too deep to be read
]


@pytest.mark.parametrize(
    ("pair", "equal", "close"),
    [(pair, pair in EQUAL, pair not in OTHER) for pair in (*EQUAL, *CLOSE, *OTHER)],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_values_are_compared_not_their_texts(pair, equal, close):
    output, expected = pair.split(" ~ ")
    for settings in RULES:
        matches = close if settings is FLOAT else equal
        assert values_match(output.encode(errors="surrogateescape"), expected, settings) is matches


def test_grading_compares_values_only_where_a_function_was_called():
    run = Execution("exit", 0, 0.0, 0.0, 0, 4, b"true", b"")
    returned = dataclasses.replace(run, stdout=VALUE_MARK + run.stdout)
    called, read = TestSuite(("", ""), ("1", "2"), "f"), TestSuite(("",), ("1",))
    kinds = [(returned, called, 0), (returned, called, 1), (run, read, 0), (run, called, 0)]
    wrong = VerdictKind.WRONG_ANSWER
    expected = [VerdictKind.PASSED, wrong, wrong, VerdictKind.RUNTIME_ERROR]
    assert [grade(*one, STRIP)[0].kind for one in kinds] == expected
