"""What a record of judged programs holds, whatever kind of file it comes from (`results`, `apps`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cobalt.datasets.offline.groups import Status
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
class JudgedProgram:
    """A program of a record.

    Attributes:
        code: The program; "" for a response without one.
        status: What became of it; means nothing if the program is dropped.
        origin: Where it stands in the record.
        text: The response as it was written; None: the program alone is the response.
        context: See `OfflineResponse`.
        reward: Its reward; None: that of its status.
        dropped: Why it cannot be used, a key of the counts; None: it can.
    """

    code: str
    status: Status
    origin: str
    text: str | None = None
    context: tuple[Message, ...] = ()
    reward: float | None = None
    dropped: str | None = None


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A problem with its judged programs.

    Attributes:
        statement: The problem's statement.
        tests: All its tests; None if the record has none.
        messages: The prompt.
        programs: The programs.
        problem: The record's fields that are about the problem; None if the record has no tests.
    """

    statement: str
    tests: TestSuite | None
    messages: Sequence[Message]
    programs: Sequence[JudgedProgram]
    problem: Mapping[str, Any] | None


def judged_record(problem: Problem, messages: Sequence[Message], programs: Sequence[JudgedProgram]) -> JudgedRecord:
    """The record of a problem with tests."""
    without_results = {name: problem.record[name] for name in _PROBLEM_FIELDS if name in problem.record}
    return JudgedRecord(problem.question, problem.tests, messages, programs, without_results)
