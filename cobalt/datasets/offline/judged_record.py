"""What a record of judged programs holds, whatever kind of file it comes from (`results`, `apps`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cobalt.datasets.offline.contrast import Candidate
from cobalt.episode import Message
from cobalt.problems.problem import Problem, TestSuite

# What becomes of a program, besides the counts of the other modules.
UNKNOWN_RESULT = "dropped: the result does not say whether the program is right"
NOT_FINISHED = "dropped: the response was cut off, or the engine failed"
NO_PROGRAM = "dropped: the response has no program"

_PROBLEM_FIELDS = (
    "id", "difficulty", "question", "instruction", "test_cases", "public_test_cases", "hidden_test_cases", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dropped:
    """A program that cannot be used: why, as a key of the counts, and where it stands in the record."""

    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A problem with its judged programs.

    Attributes:
        statement: The problem's statement.
        tests: All its tests; None if the record has none.
        messages: The prompt.
        programs: The programs, in the order of the record.
        problem: The record's fields that are about the problem; None if the record has no tests.
    """

    statement: str
    tests: TestSuite | None
    messages: Sequence[Message]
    programs: Sequence[Candidate | Dropped]
    problem: Mapping[str, Any] | None


def judged_record(
    problem: Problem, messages: Sequence[Message], programs: Sequence[Candidate | Dropped]
) -> JudgedRecord:
    """The record of a problem with tests."""
    without_results = {name: problem.record[name] for name in _PROBLEM_FIELDS if name in problem.record}
    return JudgedRecord(problem.question, problem.tests, messages, programs, without_results)
