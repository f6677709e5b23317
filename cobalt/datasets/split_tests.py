"""Public and hidden tests for problems that have only `test_cases`: the first tests are public, the rest are hidden."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cobalt.atomic import replacing
from cobalt.errors import UserError
from cobalt.files import check_files
from cobalt.problem import Problem, TestSuite, has_tests, load_problems
from cobalt.records import encode_record
from cobalt.rows import decode_json

logger = logging.getLogger(__name__)

PUBLIC_TESTS = 4
"""Public tests of a problem, as in the paper."""

ENOUGH_HIDDEN = 4
"""With fewer hidden tests than this, a wrong program may well pass them all."""

_KEYS = ("inputs", "outputs", "fn_name", "asserts")

_SPLIT = ("public_test_cases", "hidden_test_cases")


def split_tests(problem: Problem, public_tests: int = PUBLIC_TESTS) -> dict[str, Any]:
    """The record of a problem with public and hidden tests.

    A problem that has either field is left as it is. Otherwise the first `public_tests` tests are public, and fewer
    where that many would leave no hidden test.

    Raises:
        UserError: the problem has fewer than two tests, its tests have a key that is not known, or `public_tests`
            is below 1.
    """
    if public_tests < 1:
        raise UserError(f"--public_tests is {public_tests}: it must be 1 or more, because feedback comes from them")
    record = dict(problem.record)
    if any(has_tests(record, field) for field in _SPLIT):
        return record
    _check_keys(problem)
    count = len(problem.tests)
    if count < 2:
        raise UserError(
            f"problem {problem.id!r} has {count} test, and 2 are needed: one public, for feedback, and one hidden"
        )
    cut = min(public_tests, count - 1)
    suites = problem.tests.select(range(cut)), problem.tests.select(range(cut, count))
    return record | {field: _like(suite, record["test_cases"]) for field, suite in zip(_SPLIT, suites, strict=True)}


def _check_keys(problem: Problem) -> None:
    """Raise if the tests have a key that nothing reads, such as a misspelt `fn_name`."""
    tests = problem.record["test_cases"]
    tests = decode_json(tests) if isinstance(tests, str) else tests
    unknown = sorted({key for key, value in tests.items() if value is not None} - set(_KEYS))
    if unknown:
        raise UserError(f"problem {problem.id!r}: its tests have {unknown[0]!r}, and may have {', '.join(_KEYS)} alone")


def split_problem_file(source: Path, result: Path, public_tests: int = PUBLIC_TESTS) -> int:
    """Write the problems of a file, all with public and hidden tests; returns how many were split.

    Warns of problems with so few hidden tests that verdicts on them say little.

    Raises:
        UserError: a file cannot be read or written, the result exists with other problems, a problem is malformed, or
            one has too few tests; it is named.
    """
    check_files([source], [result])
    problems = load_problems(source)
    try:
        records = [split_tests(problem, public_tests) for problem in problems]
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    content = b"".join(map(encode_record, records))
    if not result.exists():
        with replacing(result) as handle:
            handle.write(content)
    elif result.read_bytes() != content:
        raise UserError(
            f"{result} exists and holds other problems than {source}, or other public tests: name another output folder"
        )
    split = [record for record, problem in zip(records, problems, strict=True) if record != problem.record]
    few = sum(len(TestSuite.parse(record["hidden_test_cases"])) < ENOUGH_HIDDEN for record in split)
    if few:
        logger.warning(
            "%d of %d problems have fewer than %d hidden tests, which a wrong program may pass: the first %d tests of a"
            " problem are public, so give %d or more",
            *(few, len(problems), ENOUGH_HIDDEN, public_tests, public_tests + ENOUGH_HIDDEN),
        )
    return len(split)


def _like(suite: TestSuite, original: object) -> object:
    """The suite in the form that the problem's tests have: a mapping, or a JSON string."""
    return suite.to_record() if isinstance(original, Mapping) else suite.to_json()
