"""Verdicts and results: the kind and the costs of each test, and the result of a whole suite.

These are values that can be read from and written to JSON. This module runs nothing and compares nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from cobalt.stage.errors import UserError


class VerdictKind(StrEnum):
    """The outcome of one test. A failure of the judge itself is not a verdict: it is an InfrastructureError."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    COMPILE_ERROR = "compile_error"
    TIME_LIMIT = "time_limit"  # CPU time
    WALL_LIMIT = "wall_limit"  # the wider limit, for a program that sleeps or waits
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    NOT_RUN = "not_run"  # after an early stop, or beyond one of the suite's budgets
    NO_CODE = "no_code"


NO_CODE_FEEDBACK = (
    "No program was found in the response: the solution must be given in one fenced ```python code block."
)


_LONGEST_SECONDS = 1e9
"""More seconds than any run takes; a record with more is malformed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one test.

    Attributes:
        kind: What happened.
        cpu_seconds: CPU time of the program and of all processes it started.
        wall_seconds: Time from the program's start to its end, without the wait for a free sandbox.
        exit_status: Exit code, negative for a signal; None if the program was not run or the judge ended it.
        peak_memory_bytes: The most memory that was seen in use (`Execution.peak_memory_bytes`); None if the program
            was not run.
    """

    kind: VerdictKind
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    exit_status: int | None = None
    peak_memory_bytes: int | None = None

    def to_record(self) -> dict[str, Any]:
        """The verdict as JSON-able values."""
        return {
            "kind": self.kind.value,
            "cpu_seconds": self.cpu_seconds,
            "wall_seconds": self.wall_seconds,
            "exit_status": self.exit_status,
            "peak_memory_bytes": self.peak_memory_bytes,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Verdict":
        """Read what `to_record` wrote.

        Raises:
            UserError: the record's kind is missing or unknown.
        """
        try:
            kind = VerdictKind(record["kind"])
        except (KeyError, ValueError):
            raise UserError(f"the kind of a verdict record is missing or unknown: {dict(record)!r}") from None
        return cls(
            kind,
            _seconds(record, "cpu_seconds"),
            _seconds(record, "wall_seconds"),
            _whole_number(record, "exit_status"),
            _whole_number(record, "peak_memory_bytes"),
        )


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A program's result on a suite; the three lists have one entry per test, in the suite's order.

    Attributes:
        passing: Whether each test passed.
        feedback: For each failed test the text that a model is shown; "" for a passed test.
        verdicts: The typed outcome of each test.
        comparison: The rule by which outputs were compared ("strip", "lines" or "float").
        isolated: False when the judge ran with its explicit `unsafe` setting.
        queue_seconds: How long the program waited for a free sandbox.
        run_seconds: Wall time from the first test's start to the last test's end.
        private: False when the judge was served on a Ray cluster that anybody could join, by its explicit
            `allow_open_cluster` setting.
    """

    passing: list[bool]
    feedback: list[str]
    verdicts: list[Verdict]
    comparison: str = "strip"
    isolated: bool = True
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    private: bool = True

    def __post_init__(self) -> None:
        if not len(self.passing) == len(self.feedback) == len(self.verdicts):
            raise UserError(
                f"a result has {len(self.passing)} outcomes, {len(self.feedback)} feedback texts "
                f"and {len(self.verdicts)} verdicts"
            )

    @property
    def pass_rate(self) -> float:
        """Passed tests divided by all tests, run or not; 0.0 for an empty suite."""
        return sum(self.passing) / len(self.passing) if self.passing else 0.0

    @property
    def all_passed(self) -> bool:
        """True when there is at least one test and every test passed."""
        return bool(self.passing) and all(self.passing)

    def select(self, places: Iterable[int]) -> "ExecResult":
        """The result on the tests at the given places, in the order given; see `TestSuite.select`."""
        chosen = list(places)
        return replace(
            self,
            passing=[self.passing[place] for place in chosen],
            feedback=[self.feedback[place] for place in chosen],
            verdicts=[self.verdicts[place] for place in chosen],
        )

    def first_failed(self) -> int | None:
        """The index of the first failing test in list order; None if no test failed."""
        return None if all(self.passing) else self.passing.index(False)

    def first_failure(self) -> str | None:
        """The feedback of the first failing test in list order; None if no test failed."""
        place = self.first_failed()
        return None if place is None else self.feedback[place]

    def to_record(self) -> dict[str, Any]:
        """The result as JSON-able values; `passing` and `feedback` are as in the authors' files, the rest is added."""
        return {
            "passing": list(self.passing),
            "feedback": list(self.feedback),
            "verdicts": [verdict.to_record() for verdict in self.verdicts],
            "comparison": self.comparison,
            "isolated": self.isolated,
            "private": self.private,
            "queue_seconds": self.queue_seconds,
            "run_seconds": self.run_seconds,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "ExecResult":
        """Read what `to_record` wrote, or a recorded file's bare `passing` and `feedback`.

        Without recorded verdicts each kind is inferred from the feedback text, and the costs are zero.

        Raises:
            UserError: a list is missing or malformed, or the lists differ in length.
        """
        passing, feedback = record.get("passing"), record.get("feedback")
        if not isinstance(passing, list) or not isinstance(feedback, list):
            raise UserError("an execution result needs the lists 'passing' and 'feedback'")
        texts = ["" if text is None else str(text) for text in feedback]
        passed = [read_passed(item) for item in passing]
        recorded = record.get("verdicts")
        if recorded is not None and not (
            isinstance(recorded, list) and all(isinstance(item, dict) for item in recorded)
        ):
            raise UserError("field 'verdicts' of an execution result must be a list of objects")
        if recorded is None:
            verdicts = [Verdict(_kind_of_text(ok, text)) for ok, text in zip(passed, texts, strict=False)]
        else:
            verdicts = [Verdict.from_record(item) for item in recorded]
        return cls(
            passed,
            texts,
            verdicts,
            str(record.get("comparison", "strip")),
            bool(record.get("isolated", True)),
            _seconds(record, "queue_seconds"),
            _seconds(record, "run_seconds"),
            bool(record.get("private", True)),
        )

    @classmethod
    def no_code(cls, n_tests: int) -> "ExecResult":
        """The result of a response without a code block: every one of its `n_tests` tests fails."""
        return cls(
            [False] * n_tests,
            [NO_CODE_FEEDBACK] * n_tests,
            [Verdict(VerdictKind.NO_CODE)] * n_tests,
        )


def read_passed(value: object) -> bool:
    """A recorded outcome of a test: true, false, 1 or 0.

    Raises:
        UserError: it is none of them.
    """
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise UserError(f"field 'passing' of an execution result holds {value!r}: an outcome is true or false")
    return bool(value)


def _seconds(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_SECONDS:
        raise UserError(f"field {name!r} of an execution result must be a number of seconds, not {str(value)[:20]!r}")
    return float(value)


def _whole_number(record: Mapping[str, Any], name: str) -> int | None:
    value = record.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UserError(f"field {name!r} of an execution result must be a whole number or null")
    return value


def _kind_of_text(passed: bool, text: str) -> VerdictKind:
    if passed:
        return VerdictKind.PASSED
    if "TimeoutError:" in text:
        return VerdictKind.TIME_LIMIT
    if "Expected Output:" in text:
        return VerdictKind.WRONG_ANSWER
    return VerdictKind.RUNTIME_ERROR
