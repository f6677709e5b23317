"""What a row of `likaixin/TACO-verified` must be to become a problem, and which of its tests the problem has.

The rules are those of the authors' preproc_taco.py (Cobalt, section on data), with three differences: function problems
keep their types, lists in place of texts may also be lines (`cobalt.datasets.readings`), and capped tests keep their
order unless the authors' is asked for. No file is read and no program is run here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from cobalt.datasets.readings import (
    UnreadableTests,
    call_readings,
    paper_call,
    text_readings,
    text_suite,
)
from cobalt.datasets.sources import field_of
from cobalt.datasets.texts import with_starter_code
from cobalt.problems.problem import ProblemId, TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.rows import decode_json

MIN_TESTS = 8
MIN_ALPHANUMERICS = 100

FunctionTests = Literal["call", "paper"]


class Rule(StrEnum):
    """Why a row is dropped, in the order in which the rules are applied."""

    TYPES = "tests that are not lists of equal length, or hold what they must not"
    FEW_TESTS = "fewer than 8 tests"
    IMAGE = "the statement shows an image"
    SHORT = "fewer than 100 letters and digits in the statement"
    UNSOLVED = "no recorded solution passes"
    DUPLICATE = "an id that an earlier row has"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that passed the rules on its form; its solutions are still to be judged.

    Attributes:
        id: As the source has it.
        difficulty: As the source has it.
        question: The statement; with the starter code, for function problems that have one.
        readings: What its tests may mean; the first that a solution passes holds.
        programs: Recorded solutions, ready to be judged.
        tests_left_out: How many of its tests are over the most that a problem may have.
    """

    id: ProblemId
    difficulty: str
    question: str
    readings: tuple[TestSuite, ...]
    programs: tuple[str, ...]
    tests_left_out: int = 0


def read_row(
    row: Mapping[str, Any], function_tests: FunctionTests, max_tests: int, authors_order: bool = False
) -> Candidate | Rule:
    """Apply the rules on form to a row.

    Args:
        row: In the data set's schema; `input_output` is an object or its JSON.
        function_tests: "call": functions are called. "paper": as programs that split a line of text.
        max_tests: Most tests to keep, see `capped_places`.
        authors_order: The order of capped tests, see there.

    Returns:
        The candidate, or the first rule that drops the row.

    Raises:
        UserError: a field is missing or of a wrong type; it is named.
    """
    identifier = _field(row, "id", (str, int))
    question = _field(row, "question", (str,))
    source = row.get("source")
    difficulty = row.get("difficulty")
    solutions = _solutions(row)
    tests = field_of(row, "input_output")
    try:
        tests = decode_json(tests) if isinstance(tests, str) else tests
    except UserError:  # not JSON, half of a surrogate pair, or a number or a nesting that Python does not read
        return Rule.TYPES
    if not isinstance(tests, dict):
        return Rule.TYPES
    inputs, outputs, fn_name = (tests.get(name) for name in ("inputs", "outputs", "fn_name"))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        return Rule.TYPES
    if len(inputs) < MIN_TESTS:
        return Rule.FEW_TESTS
    behind = ""
    try:
        if fn_name and function_tests == "call":
            readings = call_readings(fn_name, inputs, outputs)
        elif fn_name:
            readings = (text_suite(inputs, outputs),)
            behind = paper_call(str(fn_name), str(source))
        else:
            readings = text_readings(inputs, outputs)
    except UnreadableTests:
        return Rule.TYPES
    if "image" in question.lower() or "\n![" in question:
        return Rule.IMAGE
    if sum(map(str.isalnum, question)) < MIN_ALPHANUMERICS:
        return Rule.SHORT
    kept = capped_places(readings[0].inputs, max_tests, authors_order)
    statement = question.strip()
    if readings[0].fn_name is not None:
        statement = with_starter_code(statement, row.get("starter_code"))
    return Candidate(
        identifier,
        difficulty if isinstance(difficulty, str) else "UNKNOWN_DIFFICULTY",
        statement,
        tuple(reading.select(kept) for reading in readings),
        tuple(f"{solution.strip()}{behind}" for solution in solutions),
        len(inputs) - len(kept),
    )


def capped_places(inputs: Sequence[str], max_tests: int, authors_order: bool = False) -> list[int]:
    """Which tests to keep: all, or the longest inputs and, for a quarter of them, the shortest.

    The paper keeps 20: the 15 longest inputs and the 5 shortest. Of equally long inputs an earlier one counts as
    longer. Tests keep their order; in the authors' order capped tests begin with the shortest ones, and the longest
    ones follow, both from long to short.
    """
    if len(inputs) <= max_tests:
        return list(range(len(inputs)))
    longest_first = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
    shortest = max_tests // 4
    kept = longest_first[len(inputs) - shortest :] + longest_first[: max_tests - shortest]
    return kept if authors_order else sorted(kept)


def easiest_places(suite: TestSuite, count: int, passes: Sequence[int] | None) -> list[int]:
    """The tests to make public, in their order.

    Those that the most recorded attempts pass (the paper), and of equally easy ones, or without recorded attempts,
    those with the shortest inputs; the earlier first.

    Args:
        suite: All tests of a problem.
        count: How many.
        passes: How many attempts passed each test; None: no attempts are known.
    """

    def rank(place: int) -> tuple[int, int, int]:
        return (-passes[place] if passes is not None else 0, len(suite.inputs[place]), place)

    return sorted(sorted(range(len(suite)), key=rank)[:count])


def _field(row: Mapping[str, Any], name: str, types: tuple[type, ...]) -> Any:
    value = row.get(name)
    if not isinstance(value, types) or isinstance(value, bool):
        raise UserError(f"field {name!r} is missing or of a wrong type: it must be {' or '.join(map(_named, types))}")
    return value


def _named(kind: type) -> str:
    return {str: "a string", int: "an integer", list: "a list"}[kind]


def _solutions(row: Mapping[str, Any]) -> list[str]:
    """Recorded solutions: a list, or, as BAAI/TACO has it, its JSON string; null if there are none."""
    if field_of(row, "solutions") is None:
        return []
    solutions = _field(row, "solutions", (list, str))
    if isinstance(solutions, str):
        try:
            solutions = decode_json(solutions)
        except UserError:
            solutions = None
    if not isinstance(solutions, list) or not all(isinstance(solution, str) for solution in solutions):
        raise UserError("field 'solutions' is not a list of strings")
    return solutions
