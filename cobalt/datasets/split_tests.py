"""Public and hidden tests for problems that have only `test_cases`: the first tests are public, the rest are hidden."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pydantic.dataclasses

from cobalt.problems.problem import Problem, TestSuite, has_tests, load_problems
from cobalt.stage.errors import UserError, naming
from cobalt.stage.files import check_files
from cobalt.stage.rows import parse_json
from cobalt.stage.run import Input, Outcome, Output, problems_made, stage, whole
from cobalt.stage.tally import Summary

PUBLIC_TESTS = 4  # of a problem, as in the paper


def split_tests(problem: Problem, public_tests: int = PUBLIC_TESTS) -> dict[str, Any]:
    """The record of a problem with public and hidden tests.

    A problem that has either field is left as it is. Otherwise the first `public_tests` tests are public, and fewer
    where that many would leave no hidden test.

    Raises:
        UserError: the problem has fewer than two tests or an unknown key in them, or `public_tests` is below 1.
    """
    if public_tests < 1:
        raise UserError(f"--public_tests is {public_tests}: it must be 1 or more, because feedback comes from them")
    record = dict(problem.record)
    if has_tests(record, "public_test_cases") or has_tests(record, "hidden_test_cases"):
        return record
    tests, known = record["test_cases"], [field.name for field in fields(TestSuite)]
    decoded = parse_json(tests) if isinstance(tests, str) else tests
    unknown = sorted({key for key, value in decoded.items() if value is not None} - set(known))
    if unknown:  # such as a misspelt fn_name
        raise UserError(f"problem {problem.id!r}: its tests have {unknown[0]!r}, and may have {', '.join(known)} alone")
    count = len(problem.tests)
    if count < 2:
        raise UserError(f"problem {problem.id!r} has {count} test, and 2 are needed: one public and one hidden")
    cut = min(public_tests, count - 1)
    public, hidden = problem.tests.select(range(cut)), problem.tests.select(range(cut, count))
    return record | {"public_test_cases": public.to_json(), "hidden_test_cases": hidden.to_json()}


def split_problem_file(
    source: Path, result: Path, public_tests: int = PUBLIC_TESTS, chosen: Sequence[Problem] = (), **by: object
) -> Summary:
    """Write the problems of a file, or those `chosen` of them, with public and hidden tests, and count both.

    The manifest says `by` what they were chosen.

    Raises:
        UserError: a file cannot be read or written, a problem is bad, or the result was made with another input or
            other settings.
    """
    check_files([source], [result])
    problems = chosen or load_problems(source)
    with naming(str(source)):
        records = [split_tests(problem, public_tests) for problem in problems]
    split = [Problem.parse(record) for record, one in zip(records, problems, strict=True) if record != one.record]
    with whole(result, {"stage": "split", "public_tests": public_tests, **by}, [source]) as written:
        written.write(records)
        written.summary = {
            "problems": {"read": len(problems), "split": len(split), "left as they are": len(problems) - len(split)},
            "tests of those split": {
                "public": sum(len(problem.public_tests) for problem in split),
                "hidden": sum(len(problem.hidden_tests) for problem in split),
            },
        }
    return written.summary


@pydantic.dataclasses.dataclass(frozen=True)
class SplitSettings:
    """Give problems public tests, whose failures the model is shown, and hidden tests, which measure its programs.

    The first tests of a problem become public, the rest hidden. A problem that has public or hidden tests already is
    left as it is. Runs no program and needs no service.
    """

    input_file: Input
    """Problems: a file (JSONL, JSON array or Parquet, also compressed by gzip)."""
    output_file: Output
    """The same problems (JSONL), with their manifest next to them as .run.json."""
    public_tests: int = PUBLIC_TESTS
    """Number of tests that become public; at least one test stays hidden."""


@stage
def split(settings: SplitSettings) -> Outcome:
    """Write all problems of a file, with public and hidden tests, and count problems and tests.

    Raises:
        UserError: as `split_problem_file`.
    """
    summary = split_problem_file(settings.input_file, settings.output_file, settings.public_tests)
    return problems_made(summary, "Tests", settings.output_file)
