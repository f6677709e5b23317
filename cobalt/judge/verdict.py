"""Verdicts and results: the kind and the costs of each test, and the result of a whole suite."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt
from typing_extensions import TypedDict

from cobalt.stage.errors import UserError
from cobalt.stage.records import checked


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


Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Outcome = Annotated[bool, Field(strict=True), BeforeValidator(lambda value: bool(value) if value in (0, 1) else value)]
Text = Annotated[str, BeforeValidator(lambda text: "" if text is None else str(text))]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one test.

    Attributes:
        kind: The outcome.
        cpu_seconds: CPU time of the program and of all processes it started.
        wall_seconds: Time from the program's start to its end, without the wait for a free sandbox.
        exit_status: Exit code, negative for a signal; None if the program was not run or the judge ended it.
        peak_memory_bytes: The most memory that was seen in use; None if the program was not run.
    """

    kind: VerdictKind
    cpu_seconds: Seconds = 0.0
    wall_seconds: Seconds = 0.0
    exit_status: StrictInt | None = None
    peak_memory_bytes: StrictInt | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """A program's result on a suite; the three lists have one entry per test, in the suite's order.

    Attributes:
        passing: Whether each test passed.
        feedback: For each failed test the text that a model is shown; "" for a passed test.
        verdicts: The typed outcome of each test.
        comparison: The rule by which outputs were compared ("strip", "lines" or "float").
        isolated: False when the judge ran with its explicit `unsafe` setting.
        private: False when the judge was served on a Ray cluster that anybody could join, by its explicit
            `allow_open_cluster` setting.
        queue_seconds: Time that the program waited for a free sandbox.
        run_seconds: Wall time from the first test's start to the last test's end.
    """

    passing: list[Outcome]
    feedback: list[Text]
    verdicts: list[Verdict]
    comparison: str = "strip"
    isolated: bool = True
    private: bool = True
    queue_seconds: Seconds = 0.0
    run_seconds: Seconds = 0.0

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

    def select(self, indices: Iterable[int]) -> "ExecResult":
        """The result on the tests at the given indices, in that order; see `TestSuite.select`."""
        chosen = list(indices)
        return replace(
            self,
            passing=[self.passing[index] for index in chosen],
            feedback=[self.feedback[index] for index in chosen],
            verdicts=[self.verdicts[index] for index in chosen],
        )

    def first_failed(self) -> int | None:
        """The index of the first failing test in list order; None if no test failed."""
        return None if all(self.passing) else self.passing.index(False)

    def first_failure(self) -> str | None:
        """The feedback of the first failing test in list order; None if no test failed."""
        index = self.first_failed()
        return None if index is None else self.feedback[index]

    def to_record(self) -> dict[str, Any]:
        """The result as JSON-able values; `passing` and `feedback` are as in the authors' files, the rest is added."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "ExecResult":
        """Read what `to_record` wrote, or a recorded file's bare `passing` and `feedback`.

        Without recorded verdicts each kind is inferred from the feedback text, and the costs are zero.

        Raises:
            UserError: a list is missing or malformed, or the lists differ in length.
        """
        if record.get("verdicts") is not None:
            return checked(cls, record)
        bare = checked(_Bare, record)
        kinds = map(_kind_of_text, bare["passing"], bare["feedback"])
        return cls(bare["passing"], bare["feedback"], list(map(Verdict, kinds)))

    @classmethod
    def no_code(cls, n_tests: int) -> "ExecResult":
        """The result of a response without a code block: every one of its `n_tests` tests fails."""
        return cls(
            [False] * n_tests,
            [NO_CODE_FEEDBACK] * n_tests,
            [Verdict(VerdictKind.NO_CODE)] * n_tests,
        )


class _Bare(TypedDict):
    """A result in a recorded file."""

    passing: list[Outcome]
    feedback: list[Text]


def _kind_of_text(passed: bool, text: str) -> VerdictKind:
    if passed:
        return VerdictKind.PASSED
    if "TimeoutError:" in text:
        return VerdictKind.TIME_LIMIT
    if "Expected Output:" in text:
        return VerdictKind.WRONG_ANSWER
    return VerdictKind.RUNTIME_ERROR
