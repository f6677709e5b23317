"""The judge's wire format, the same over HTTP and over a deployment handle.

A request is `{"code": str, "test_cases": {"inputs": [...], "outputs": [...]}}`, with an optional
`"stop_at_first_failure": bool`. `test_cases` may also be a JSON string, may name a function to call (`"fn_name"`), and
may hold assertions on what this function returns (`"asserts": true`, `cobalt.judge.asserting`). In place of
`test_cases`, `"suite"` may name a suite that the server got before, by its digest (`digest_of`).
The answer is `ExecResult.to_record()`. This module sends nothing.
"""

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import CobaltError, UserError, naming
from cobalt.stage.rows import decode_json

START_ADVICE = (
    "start the judge with `cobalt serve`, run one command with it by `python -m cobalt.services -- COMMAND`, or start"
    " it on a Ray cluster with `serve run remote_reward_server:app --name evaluator --route-prefix /evaluator`; without"
    " a URL the judge runs in the command itself"
)

_FIELDS = {"code": str, "test_cases": object, "suite": str, "stop_at_first_failure": bool}

CACHE_BYTES = 256 * 2**20
"""Memory of the suites that a server keeps."""


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
    def parse(cls, payload: object, *, max_tests: int | None = None, suites: "Suites | None" = None) -> "JudgeRequest":
        """Check a payload and read it.

        Args:
            payload: The request's JSON value.
            max_tests: The most tests that a suite may have; None: any number.
            suites: The suites that requests may name, to which this one's is added; None: none.

        Raises:
            UserError: a field is missing, malformed or unknown; the message names the field.
            UnknownSuite: the request names a suite that is not among `suites`.
        """
        if not isinstance(payload, Mapping):
            raise UserError('a judge request must be a JSON object {"code": ..., "test_cases": ...}')
        for name, value in payload.items():
            if not isinstance(value, _FIELDS.get(name, ())):
                raise UserError(f"a judge request has the field {name!r}, which is unknown or of another type")
        if "code" not in payload:
            raise UserError("field 'code' is missing")
        if ("suite" in payload) == ("test_cases" in payload):
            raise UserError("field 'test_cases' is missing, or the field 'suite' is given as well")
        if "suite" in payload:
            suite = None if suites is None else suites.get(payload["suite"])
            if suite is None:
                raise UnknownSuite(payload["suite"])
        else:
            with naming("field 'test_cases'"):
                suite = _suite(payload["test_cases"], max_tests)
            if suites is not None:
                suites.add(suite)
        return cls(payload["code"], suite, payload.get("stop_at_first_failure", False))


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


class UnknownSuite(CobaltError):
    """A request names a suite, by `digest`, that the server does not keep: send the whole suite."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the suite {digest} is unknown: send 'test_cases'")
        self.digest = digest


def suite_bytes(suite: TestSuite) -> bytes:
    """The canonical form of a suite: all that decides verdicts as JSON, without halves of surrogate pairs."""
    return suite.to_json().encode("utf-8", "replace")


def digest_of(canonical: bytes) -> str:
    """The digest of a suite by its canonical form."""
    return hashlib.sha256(canonical).hexdigest()


class Suites:
    """The suites that a server got last, by digests that it computes itself, so that nobody can give another's tests.

    Args:
        most_bytes: Memory that they may take; a larger suite is not kept.
    """

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._free = most_bytes
        self._suites: OrderedDict[str, tuple[TestSuite, int]] = OrderedDict()

    def get(self, digest: str) -> TestSuite | None:
        """The suite with this digest; None if it is not kept."""
        if digest not in self._suites:
            return None
        self._suites.move_to_end(digest)
        return self._suites[digest][0]

    def add(self, suite: TestSuite) -> None:
        """Keep a suite, and drop those that were not used for the longest time where they leave no room."""
        digest = digest_of(suite_bytes(suite))
        if self.get(digest) is not None:
            return
        size = sum(map(sys.getsizeof, (suite.inputs, suite.outputs, *suite.inputs, *suite.outputs, suite.prelude)))
        self._suites[digest] = (suite, size)
        self._free -= size
        while self._free < 0:
            self._free += self._suites.popitem(last=False)[1][1]
