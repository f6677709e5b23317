"""Convert tests as TACO's family of data sets writes them to suites of texts, or of calls with typed arguments.

Where a test can be read in several ways, all suites come back, and a recorded solution decides which holds. For a call
the judge wants one JSON value a line and canonical JSON (`cobalt.judge.calling`); a call with arguments that JSON lacks
is an assertion test (`cobalt.judge.asserting`). The paper's way, everything joined
with blanks, loses types, nesting and blanks within texts; it is kept as a named option. Nothing here runs a program.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal

from cobalt.datasets.literals import python_literal
from cobalt.judge.calling import call_input, canonical_json
from cobalt.problems.problem import TestSuite
from cobalt.stage.rows import encode_json


class UnreadableTests(Exception):
    """A data set's tests do not have the form that they should have: an error of the data, not of this code."""


def call_readings(fn_name: object, inputs: Sequence[object], outputs: Sequence[object]) -> tuple[TestSuite, ...]:
    """The suites that a data set's argument lists and values may mean, the likelier first.

    Data sets of TACO's family wrap a returned value into a list of one, and their graders take a value as right that
    equals either the list or what is in it. Where every output is such a list the problem's solutions decide: bare
    values are tried first, then the lists.

    JSON has only text as keys. The graders of APPS and TACO turn the keys of a first argument back into whole numbers
    where all of them look like these, so this reading comes first, then the one that does so in every argument and
    within values, and the texts as they are last. The keys of returned values need nothing: the judge compares them as
    texts.

    Args:
        fn_name: The function's name.
        inputs: A list of arguments for each test; values as `parse_json` gives them.
        outputs: The value that each call returns.

    Raises:
        UnreadableTests: an input is not a list of arguments, a value is nested too deeply for JSON, or `fn_name` is not
            an identifier.
    """
    if not isinstance(fn_name, str) or not fn_name.isidentifier():
        raise UnreadableTests("fn_name is not the name of a function")
    calls = [item for item in inputs if isinstance(item, list)]
    if len(calls) < len(inputs):
        raise UnreadableTests("an input is not a list of arguments")
    values = [list(outputs)]
    if all(isinstance(output, list) and len(output) == 1 for output in outputs):
        values.insert(0, [output[0] for output in outputs if isinstance(output, list)])
    try:
        first = [[_whole_keys(item[0]), *item[1:]] if item else item for item in calls]
        every = [[_all_whole_keys(argument) for argument in item] for item in calls]
        numbered = [one for one in (first, every) if one != calls]
        if len(numbered) == 2 and first == every:
            numbered.pop()
        # Where only keys within values look like numbers, the graders leave them as they are.
        arguments = [*numbered, calls] if first != calls else [calls, *numbered]
        return tuple(
            _call_suite(fn_name, one, results) if one is calls else _assertion_suite(fn_name, one, results)
            for one in arguments
            for results in values
        )
    except RecursionError:
        raise UnreadableTests("a value is nested too deeply") from None


def _call_suite(fn_name: str, calls: Sequence[list[Any]], results: Sequence[object]) -> TestSuite:
    return TestSuite(tuple(map(call_input, calls)), tuple(map(canonical_json, results)), fn_name)


def _assertion_suite(fn_name: str, calls: Sequence[list[Any]], results: Sequence[object]) -> TestSuite:
    """The calls as assertions, because a line of JSON cannot hold a key that is a number."""
    scripts, checks = [], []
    for arguments, expected in zip(calls, results, strict=True):
        call = f"{fn_name}({', '.join(map(python_literal, arguments))})"
        scripts.append(call)
        if isinstance(expected, list | dict):  # tuples are lists and keys are texts, as in calls with JSON arguments
            checks.append(f"import json\nassert json.loads(json.dumps({call})) == {python_literal(expected)}")
        else:
            checks.append(f"assert {call} == {python_literal(expected)}")
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

    Raises:
        UnreadableTests: an item is neither a string nor a list.
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


Joined = Literal["words", "lines"]


def text_readings(
    inputs: Sequence[object], outputs: Sequence[object], likelier: Joined = "words"
) -> tuple[TestSuite, ...]:
    """The suites that a data set's texts may mean: lists as words (the paper) or as lines (APPS's and TACO's graders).

    Args:
        inputs: Standard inputs: texts, or lists of what is on them.
        outputs: Standard outputs, likewise.
        likelier: The reading that comes first.

    Raises:
        UnreadableTests: an item is neither a string nor a list.
    """
    words, lines = text_suite(inputs, outputs), text_suite(inputs, outputs, "\n")
    if words == lines:
        return (words,)
    return (words, lines) if likelier == "words" else (lines, words)


def paper_call(fn_name: str, source: str) -> str:
    """The line by which the authors' preproc_taco.py runs a function as a program; `source` is the problem's site."""
    owner = "Solution()." if source == "leetcode" else ""
    return f"\nprint({owner}{fn_name}(*input().split()))"
