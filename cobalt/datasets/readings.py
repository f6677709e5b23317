"""Convert tests as TACO's family of data sets writes them to suites of texts, or of calls with typed arguments.

Where a test can be read in several ways, all suites come back, and a recorded solution decides which holds. For a call
the judge wants one JSON value a line and canonical JSON (`cobalt.judge.calling`); a call with arguments that JSON lacks
is an assertion test (`cobalt.judge.asserting`). The paper's way, everything joined with blanks, loses types, nesting
and blanks within texts; it is kept as a named option.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from cobalt.datasets.recorder import source_of
from cobalt.judge import Judge
from cobalt.judge.calling import call_input, canonical_json
from cobalt.problems.problem import ProblemId, TestSuite
from cobalt.stage.retrying import retrying
from cobalt.stage.rows import encode_json


class UnreadableTests(Exception):
    """A data set's tests do not have the form that they should have."""


class Task(NamedTuple):
    """A row, read: `readings` is what its tests may mean, the likelier first; `programs` are recorded solutions."""

    id: ProblemId
    difficulty: str | None
    question: str
    readings: tuple[TestSuite, ...]
    programs: tuple[str, ...]
    tests_left_out: int = 0


def call_readings(fn_name: object, inputs: Sequence[object], outputs: Sequence[object]) -> tuple[TestSuite, ...]:
    """The suites that a data set's argument lists and values may mean, the likelier first.

    Data sets of TACO's family wrap a returned value into a list of one, and their graders accept the list and what is
    in it. Where every output is such a list, bare values are tried first, then the lists.

    JSON has only text as keys. The graders of APPS and TACO turn the keys of a first argument back into whole numbers
    where all of them look like these, so this reading comes first, then the one that does so in every argument and
    within values, and the texts as they are last. The judge compares the keys of returned values as texts.

    Raises:
        UnreadableTests: an input is not a list of arguments, a value is nested too deeply for JSON, or `fn_name` is not
            an identifier.
    """
    if not isinstance(fn_name, str) or not fn_name.isidentifier():
        raise UnreadableTests("fn_name is not the name of a function")
    calls = [item for item in inputs if isinstance(item, list)]
    if len(calls) < len(inputs):
        raise UnreadableTests("an input is not a list of arguments")
    lists_of_one = [output for output in outputs if isinstance(output, list) and len(output) == 1]
    values: list[Sequence[object]] = [outputs]
    if len(lists_of_one) == len(outputs):
        values.insert(0, [output[0] for output in lists_of_one])
    try:
        first = [[_whole_keys(item[0]), *item[1:]] if item else item for item in calls]
        every = [[_all_whole_keys(argument) for argument in item] for item in calls]
        possible = (first, every, calls)
        arguments = [one for index, one in enumerate(possible) if one not in possible[:index]]
        return tuple(
            TestSuite(tuple(map(call_input, one)), tuple(map(canonical_json, results)), fn_name)
            if one == calls
            else _assertion_suite(fn_name, one, results)
            for one in arguments
            for results in values
        )
    except RecursionError:
        raise UnreadableTests("a value is nested too deeply") from None


def _assertion_suite(fn_name: str, calls: Sequence[list[Any]], results: Sequence[object]) -> TestSuite:
    """The calls as assertions, because a line of JSON cannot hold a key that is a number."""
    scripts, checks = [], []
    for arguments, expected in zip(calls, results, strict=True):
        call = f"{fn_name}({', '.join(map(source_of, arguments))})"
        scripts.append(call)
        if isinstance(expected, list | dict):  # tuples are lists and keys are texts, as in calls with JSON arguments
            checks.append(f"import json\nassert json.loads(json.dumps({call})) == {source_of(expected)}")
        else:
            checks.append(f"assert {call} == {source_of(expected)}")
    return TestSuite(tuple(scripts), tuple(checks), fn_name, True)


def _whole_keys(value: Any) -> Any:
    """A dictionary whose keys are all whole numbers with these as its keys; any other value as it is."""
    if not isinstance(value, dict) or not value or not all(_WHOLE.fullmatch(key) for key in value):
        return value
    numbered = {int(key): item for key, item in value.items()}
    return numbered if len(numbered) == len(value) else value


def _all_whole_keys(value: Any) -> Any:
    """`_whole_keys` of every dictionary within the value."""
    if isinstance(value, dict):
        return _whole_keys({key: _all_whole_keys(item) for key, item in value.items()})
    return [_all_whole_keys(item) for item in value] if isinstance(value, list) else value


_WHOLE = re.compile(r"-?\d{1,600}", re.ASCII)  # no longer than `int` reads under every limit


def text_suite(inputs: Sequence[object], outputs: Sequence[object], between: str = " ") -> TestSuite:
    """A suite of texts as they are and lists joined by `between`; the authors' preproc_taco.py joins by blanks.

    Raises UnreadableTests if an item is neither a string nor a list.
    """

    def text(item: object) -> str:
        if isinstance(item, list):
            return between.join(map(_word, item))
        if not isinstance(item, str):
            raise UnreadableTests("an item is neither text nor a list")
        return item

    return TestSuite(tuple(map(text, inputs)), tuple(map(text, outputs)))


def _word(item: object) -> str:
    try:
        return str(item)
    except ValueError:  # an integer longer than Python's limit
        return encode_json(item)


def text_readings(inputs: Sequence[object], outputs: Sequence[object]) -> tuple[TestSuite, ...]:
    """The suites that a data set's texts may mean: lists as words (the paper), then as lines (graders of both).

    Raises as `text_suite`.
    """
    words, lines = text_suite(inputs, outputs), text_suite(inputs, outputs, "\n")
    return (words,) if words == lines else (words, lines)


async def passed_reading(judge: Judge, programs: Sequence[str], readings: Sequence[TestSuite]) -> TestSuite | None:
    """The first of some readings of the tests that one of the programs passes; None if no program passes any.

    A judge that fails itself is asked three times, and then raises as it does: nothing is known of the readings then.
    """
    attempts = retrying(3, first_pause=0.2, longest_pause=10.0)
    for program in programs:
        for suite in readings:
            if (await attempts(judge.judge, program, suite, stop_at_first_failure=True)).all_passed:
                return suite
    return None
