"""Public and hidden tests for problems that have only `test_cases`: the first tests are public, the rest are hidden."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cobalt.atomic import replacing
from cobalt.errors import UserError
from cobalt.files import check_files
from cobalt.problem import Problem, TestSuite, load_problems
from cobalt.records import encode_record

PUBLIC_TESTS = 4
"""Public tests of a problem, as in the paper."""

_SPLIT = ("public_test_cases", "hidden_test_cases")


def split_tests(problem: Problem, public_tests: int = PUBLIC_TESTS) -> dict[str, Any]:
    """The record of a problem with public and hidden tests.

    A problem that has either field is left as it is. Otherwise the first `public_tests` tests are public, and fewer
    where that many would leave no hidden test.

    Raises:
        UserError: the problem has fewer than two tests, or `public_tests` is below 1.
    """
    if public_tests < 1:
        raise UserError(f"--public_tests is {public_tests}: it must be 1 or more, because feedback comes from them")
    record = dict(problem.record)
    if any(field in record for field in _SPLIT):
        return record
    count = len(problem.tests)
    if count < 2:
        raise UserError(
            f"problem {problem.id!r} has {count} test, and 2 are needed: one public, for feedback, and one hidden"
        )
    cut = min(public_tests, count - 1)
    suites = problem.tests.select(range(cut)), problem.tests.select(range(cut, count))
    return record | {field: _like(suite, record["test_cases"]) for field, suite in zip(_SPLIT, suites, strict=True)}


def split_problem_file(source: Path, result: Path, public_tests: int = PUBLIC_TESTS) -> int:
    """Write the problems of a file, all with public and hidden tests; returns how many were split.

    Raises:
        UserError: a file cannot be read or written, a problem is malformed, or one has too few tests; it is named.
    """
    check_files([source], [result])
    problems = load_problems(source)
    try:
        records = [split_tests(problem, public_tests) for problem in problems]
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    result.parent.mkdir(parents=True, exist_ok=True)
    with replacing(result) as handle:
        handle.writelines(map(encode_record, records))
    return sum(record != problem.record for record, problem in zip(records, problems, strict=True))


def _like(suite: TestSuite, original: object) -> object:
    """The suite in the form that the problem's tests have: a mapping, or a JSON string."""
    return suite.to_record() if isinstance(original, Mapping) else suite.to_json()
