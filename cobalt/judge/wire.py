"""The judge's wire format, the same over HTTP and over a deployment handle.

A request is `{"code": str, "test_cases": {"inputs": [...], "outputs": [...]}}`, with an optional
`"stop_at_first_failure": bool`. `test_cases` may also be a JSON string, may name a function to call (`"fn_name"`), and
may hold assertions on what this function returns (`"asserts": true`, `cobalt.judge.asserting`).
The answer is `ExecResult.to_record()`. This module sends nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError, naming
from cobalt.stage.rows import decode_json

APP_NAME = "evaluator"
SERVE_COMMAND = f"serve run remote_reward_server:app --name {APP_NAME} --route-prefix /{APP_NAME}"
START_ADVICE = (
    "start the judge with `cobalt serve`, run one command with it by `python -m cobalt.services -- COMMAND`, or start"
    f" it on a Ray cluster with `{SERVE_COMMAND}`; without a URL the judge runs in the command itself"
)


def values_of(max_tests: int) -> int:
    """The most JSON values that a request with `max_tests` tests can need, other fields included."""
    return 2 * max_tests + 4096


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
        code, stop = payload.get("code"), payload.get("stop_at_first_failure", False)
        if not isinstance(code, str):
            raise UserError("field 'code' is missing or not a string")
        if not isinstance(stop, bool):
            raise UserError("field 'stop_at_first_failure' must be true or false")
        if "test_cases" not in payload:
            raise UserError("field 'test_cases' is missing")
        with naming("field 'test_cases'"):
            return cls(code, _suite(payload["test_cases"], max_tests), stop)


def _suite(value: object, max_tests: int | None) -> TestSuite:
    if isinstance(value, str) and max_tests is not None:  # values of other bodies are counted as they arrive
        value = decode_json(value, most_values=values_of(max_tests))
        if isinstance(value, str):  # which would be decoded once more, without a limit
            raise UserError("the test suite is not an object")
    suite = TestSuite.parse(value)
    if len(suite) == 0:
        raise UserError("the test suite is empty")
    if max_tests is not None and len(suite) > max_tests:
        raise UserError(f"{len(suite)} tests are more than the {max_tests} of max_tests")
    return suite
