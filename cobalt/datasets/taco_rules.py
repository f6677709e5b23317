"""What a row of `likaixin/TACO-verified` must be to become a problem, and which of its tests the problem has.

The rules are those of the authors' preproc_taco.py (Cobalt, section on data), with three differences: function problems
keep their types, lists in place of texts may also be lines (`cobalt.datasets.readings`), and capped tests keep their
order unless the authors' is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from cobalt.datasets.readings import UnreadableTests, call_readings, text_readings, text_suite
from cobalt.datasets.sources import decoded, field_of
from cobalt.datasets.texts import with_starter_code
from cobalt.problems.problem import ProblemId, TestSuite
from cobalt.stage.errors import UserError

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
    """The candidate in a row of the data set, or the first rule on form that drops the row.

    With `function_tests` "call" functions are called; with "paper" they are programs that split a line of text.

    Raises:
        UserError: a field is missing or of a wrong type; it is named.
    """
    identifier = field_of(row, "id", str, int)
    question = field_of(row, "question", str)
    difficulty = row.get("difficulty")
    solutions = _solutions(row)
    tests = decoded(field_of(row, "input_output"))
    if not isinstance(tests, dict):
        return Rule.TYPES
    inputs, outputs, fn_name = (tests.get(name) for name in ("inputs", "outputs", "fn_name"))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        return Rule.TYPES
    if len(inputs) < MIN_TESTS:
        return Rule.FEW_TESTS
    call = ""
    try:
        if fn_name and function_tests == "call":
            readings = call_readings(fn_name, inputs, outputs)
        elif fn_name:
            readings = (text_suite(inputs, outputs),)
            owner = "Solution()." if row.get("source") == "leetcode" else ""
            call = f"\nprint({owner}{fn_name}(*input().split()))"  # as in the authors' preproc_taco.py
        else:
            readings = text_readings(inputs, outputs)
    except UnreadableTests:
        return Rule.TYPES
    if "image" in question.lower() or "\n![" in question:
        return Rule.IMAGE
    if sum(map(str.isalnum, question)) < MIN_ALPHANUMERICS:
        return Rule.SHORT
    selected = capped_places(readings[0].inputs, max_tests, authors_order)
    statement = question.strip()
    if readings[0].fn_name is not None:
        statement = with_starter_code(statement, row.get("starter_code"))
    return Candidate(
        identifier,
        difficulty if isinstance(difficulty, str) else "UNKNOWN_DIFFICULTY",
        statement,
        tuple(reading.select(selected) for reading in readings),
        tuple(f"{solution.strip()}{call}" for solution in solutions),
        len(inputs) - len(selected),
    )


def _solutions(row: Mapping[str, Any]) -> list[str]:
    """Recorded solutions: a list, or, as BAAI/TACO has it, its JSON string; null if there are none."""
    value = field_of(row, "solutions")
    solutions = [] if value is None else decoded(value)
    if not isinstance(solutions, list) or not all(isinstance(solution, str) for solution in solutions):
        raise UserError("field 'solutions' is not a list of strings")
    return solutions


def capped_places(inputs: Sequence[str], max_tests: int, authors_order: bool = False) -> list[int]:
    """Which tests to keep: all, or the longest inputs and, for a quarter of them, the shortest (paper: 15 and 5).

    Of equally long inputs an earlier one counts as longer. Tests keep their order; in the authors' order capped tests
    begin with the shortest ones, and the longest ones follow, both from long to short.
    """
    if len(inputs) <= max_tests:
        return list(range(len(inputs)))
    longest_first = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    shortest = max_tests // 4
    selected = longest_first[len(inputs) - shortest :] + longest_first[: max_tests - shortest]
    return selected if authors_order else sorted(selected)


def easiest_places(suite: TestSuite, count: int, passes: Sequence[int] | None) -> list[int]:
    """The tests to make public, in their order.

    Those that the most recorded attempts pass (the paper), and of equally easy ones, or without recorded attempts,
    those with the shortest inputs; the earlier first. `passes` has how many attempts passed each test.
    """

    def rank(index: int) -> tuple[int, int]:
        return (-passes[index] if passes else 0, len(suite.inputs[index]))

    return sorted(sorted(range(len(suite)), key=rank)[:count])
