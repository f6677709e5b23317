"""A program's progress through its suite: which tests wait, are taken or are done, and where the suite is cut off."""

import heapq
from dataclasses import replace

from cobalt.judge.asserting import returned_values
from cobalt.judge.feedback import EARLIER_TEST_FAILED, failure_text, not_run_text
from cobalt.judge.prelude import around_program
from cobalt.judge.sandbox.sandbox import Execution
from cobalt.judge.settings import JudgeSettings
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import TestSuite

# Number of tests that the authors' judge runs at once; `suite_seconds` is counted with it.
PAPER_LANES = 4

# Bytes of what the calls of a suite's assertion tests may return together; they are in memory until the checks run.
VALUES_BYTES = 32 << 20

Graded = tuple[Verdict, str]
"""A test's verdict and its feedback."""


class Progress:
    """One program's progress through its suite; `values` has what the calls of assertion tests returned, by index."""

    def __init__(self, code: str, suite: TestSuite, settings: JudgeSettings, stop: bool) -> None:
        self.source = code.encode("utf-8", "replace")  # halves of surrogate pairs have no UTF-8 form
        self.suite = suite
        self.values: dict[int, str] = {}
        self._bytes_left = VALUES_BYTES
        # A suite whose converter knows how its data set compares says so; for the others it is the judge's setting.
        compared = {} if suite.comparison is None else {"comparison": suite.comparison}
        self.settings = settings.model_copy(update=compared)
        self.around = around_program(suite, self.settings)
        self._stop = stop
        self._waiting = list(range(len(suite) - 1, -1, -1))
        # Of each finished test also the seconds in which it was idle.
        self._done: list[tuple[Graded, float] | None] = [None] * len(suite)
        # Sums over the finished tests at the start of the list, so that each test is counted once.
        self._counted, self._cpu_spent, self._idle_spent = 0, 0.0, 0.0
        self._lanes = [0.0] * PAPER_LANES
        self._end: tuple[int, str] | None = None

    def take(self) -> int | None:
        """The index of the next test to run; None if no test is left or the rest need not run."""
        return self._waiting.pop() if self.unfinished else None

    @property
    def unfinished(self) -> bool:
        """Whether another test must be run."""
        return bool(self._waiting) and self._cut() is None

    def give_back(self, index: int) -> None:
        """Put back a test whose sandbox broke."""
        self._waiting.append(index)
        self._waiting.sort(reverse=True)

    def settle(self, index: int, graded: Graded, run: Execution) -> None:
        """Record a test's outcome."""
        self._done[index] = graded, run.idle_seconds

    def keep_values(self, index: int, graded: Graded, stdout: bytes) -> Graded:
        """Keep what the calls of an assertion test returned, up to `VALUES_BYTES` of a suite; returns its outcome."""
        verdict = graded[0]
        if verdict.kind is not VerdictKind.PASSED:
            return graded
        if len(stdout) > self._bytes_left:
            limit = f"{VALUES_BYTES} bytes in all tests"
            text = failure_text(VerdictKind.OUTPUT_LIMIT, self.suite.inputs[index], "", "", "", limit)
            return replace(verdict, kind=VerdictKind.OUTPUT_LIMIT), text
        self._bytes_left -= len(stdout)
        self.values[index] = returned_values(stdout)
        return graded

    def fail_all(self, message: str) -> None:
        """Record that the program does not compile."""
        self._waiting.clear()
        verdict = Verdict(VerdictKind.COMPILE_ERROR)
        for index, stdin in enumerate(self.suite.inputs):
            self._done[index] = (verdict, failure_text(verdict.kind, stdin, "", "", message, "")), 0.0

    def _cut(self) -> tuple[int, str] | None:
        """Number of the first tests that count, and the feedback of the others; None while all finished ones count."""
        while self._end is None and self._counted < len(self._done):
            done = self._done[self._counted]
            if done is None:
                return None
            (verdict, _), idle = done
            self._cpu_spent += verdict.cpu_seconds
            self._idle_spent += idle
            heapq.heapreplace(self._lanes, self._lanes[0] + verdict.cpu_seconds + idle)
            self._counted += 1
            limit = self.settings.suite_seconds
            if limit is not None and max(self._lanes) > limit:
                self._end = 0, f"TimeoutError: the program did not finish all tests within {limit:g} s."
            elif (reason := self._reason(verdict)) is not None:
                self._end = self._counted, not_run_text(reason)
        return self._end

    def _reason(self, last: Verdict) -> str | None:
        """Reason why tests after the last counted one do not count; None if they count."""
        cpu, wall = self.settings.suite_cpu_seconds, self.settings.suite_wall_seconds
        if self._stop and last.kind is not VerdictKind.PASSED:
            return EARLIER_TEST_FAILED
        if cpu is not None and self._cpu_spent > cpu:
            return f"the suite's budget of {cpu:g} s of CPU time was spent"
        if wall is not None and self._idle_spent > wall:
            return f"the suite's budget of {wall:g} s of waiting was spent"
        return None

    def result(self, *, queue_seconds: float, run_seconds: float) -> ExecResult:
        """The whole suite's result. Tests that ran although the suite was cut off before them are `not_run`."""
        end, text = self._cut() or (len(self._done), "")
        graded = [
            done[0] if index < end and done is not None else (Verdict(VerdictKind.NOT_RUN), text)
            for index, done in enumerate(self._done)
        ]
        return ExecResult(
            [verdict.kind is VerdictKind.PASSED for verdict, _ in graded],
            [text for _, text in graded],
            [verdict for verdict, _ in graded],
            self.settings.comparison,
            not self.settings.unsafe,
            queue_seconds=queue_seconds,
            run_seconds=run_seconds,
        )
