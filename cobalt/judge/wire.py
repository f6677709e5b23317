"""The judge's wire format: requests and results, the same over HTTP and over a deployment handle.

A request is `{"code": str, "test_cases": {"inputs": [...], "outputs": [...]}}`, with an optional
`"stop_at_first_failure": bool`. `test_cases` may also be a JSON string, may name a function to call (`"fn_name"`), and
may hold assertions on what this function returns (`"asserts": true`, `cobalt.judge.asserting`).
The answer is `ExecResult.to_record()`. This module sends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.json_measure import TooManyValues

APP_NAME = "evaluator"
SERVE_COMMAND = f"serve run remote_reward_server:app --name {APP_NAME} --route-prefix /{APP_NAME}"
START_ADVICE = (
    "start the judge with `cobalt serve`, run one command with it by `python -m cobalt.services -- COMMAND`, or start"
    f" it on a Ray cluster of your own with `{SERVE_COMMAND}`"
)


_OTHER_VALUES = 4096


def values_of(max_tests: int) -> int:
    """The most JSON values that a request with `max_tests` tests can need, other fields and 1,000 files included."""
    return 2 * max_tests + _OTHER_VALUES


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One program and the suite to run it on."""

    code: str
    suite: TestSuite
    stop_at_first_failure: bool = False

    def to_payload(self) -> dict[str, Any]:
        """The request as JSON-able values."""
        return {
            "code": self.code,
            "test_cases": self.suite.to_record(),
            "stop_at_first_failure": self.stop_at_first_failure,
        }

    @classmethod
    def parse(cls, payload: object, *, max_tests: int | None = None) -> "JudgeRequest":
        """Check a payload and read it.

        Args:
            payload: The request's JSON value.
            max_tests: The most tests that a suite may have; None: any number.

        Raises:
            UserError: a field is missing, malformed or unknown; the message names the field.
        """
        if not isinstance(payload, Mapping):
            raise UserError('a judge request must be a JSON object {"code": ..., "test_cases": ...}')
        unknown = sorted(set(map(str, payload)) - {"code", "test_cases", "stop_at_first_failure"})
        if unknown:
            raise UserError(f"a judge request has the unknown field {unknown[0]!r}")
        code = payload.get("code")
        if not isinstance(code, str):
            raise UserError("field 'code' is missing or not a string")
        if "test_cases" not in payload:
            raise UserError("field 'test_cases' is missing")
        try:
            suite = TestSuite.parse(
                payload["test_cases"], most_values=None if max_tests is None else values_of(max_tests)
            )
        except TooManyValues as error:
            raise UserError(
                f"field 'test_cases': {error}, which a suite of max_tests={max_tests} cannot have"
            ) from None
        except UserError as error:
            raise UserError(f"field 'test_cases': {error}") from None
        stop = payload.get("stop_at_first_failure", False)
        if not isinstance(stop, bool):
            raise UserError("field 'stop_at_first_failure' must be true or false")
        if len(suite) == 0:
            raise UserError("field 'test_cases': the test suite is empty")
        if max_tests is not None and len(suite) > max_tests:
            raise UserError(f"field 'test_cases': {len(suite)} tests are more than the {max_tests} of max_tests")
        return cls(code, suite, stop)
