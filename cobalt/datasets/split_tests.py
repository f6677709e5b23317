"""Public and hidden tests for problems that have only `test_cases`: the first tests are public, the rest are hidden."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic.dataclasses

from cobalt.problems.problem import Problem, TestSuite, has_tests, load_problems
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import UserError, naming
from cobalt.stage.files import check_files
from cobalt.stage.records import encode_record
from cobalt.stage.rows import decode_json
from cobalt.stage.run import Input, Outcome, Output, problems_made, stage, whole
from cobalt.stage.tally import Summary

logger = logging.getLogger(__name__)

PUBLIC_TESTS = 4  # of a problem, as in the paper
ENOUGH_HIDDEN = 4  # with fewer hidden tests, a wrong program may well pass them all
_KEYS = ("inputs", "outputs", "fn_name", "asserts")


def split_tests(problem: Problem, public_tests: int = PUBLIC_TESTS) -> dict[str, Any]:
    """The record of a problem with public and hidden tests, in the form of its tests: a mapping, or its JSON.

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
    as_text = isinstance(record["test_cases"], str)
    tests = decode_json(record["test_cases"]) if as_text else record["test_cases"]
    unknown = sorted({key for key, value in tests.items() if value is not None} - set(_KEYS))
    if unknown:  # such as a misspelt fn_name
        raise UserError(f"problem {problem.id!r}: its tests have {unknown[0]!r}, and may have {', '.join(_KEYS)} alone")
    count = len(problem.tests)
    if count < 2:
        raise UserError(f"problem {problem.id!r} has {count} test, and 2 are needed: one public and one hidden")
    cut = min(public_tests, count - 1)
    public, hidden = problem.tests.select(range(cut)), problem.tests.select(range(cut, count))
    encode = TestSuite.to_json if as_text else TestSuite.to_record
    return record | {"public_test_cases": encode(public), "hidden_test_cases": encode(hidden)}


def split_problem_file(
    source: Path, result: Path, public_tests: int = PUBLIC_TESTS, problems: Sequence[Problem] | None = None
) -> None:
    """Write the problems of a file, or those of `problems`, with public and hidden tests.

    A result that exists must have the same content.

    Raises:
        UserError: a file cannot be read or written, the result has other problems, or a problem is bad; it is named.
    """
    check_files([source], [result])
    records, _ = _split_all(source, problems or load_problems(source), public_tests)
    content = b"".join(map(encode_record, records))
    if not result.exists():
        with replacing(result) as handle:
            handle.write(content)
    elif result.read_bytes() != content:
        raise UserError(f"{result} exists and holds other problems or public tests: name another output folder")


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
        UserError: as `split_problem_file`, or the result was made with another input or number of tests.
    """
    source = settings.input_file
    records, summary = _split_all(source, load_problems(source), settings.public_tests)
    with whole(settings.output_file, {"stage": "split", "public_tests": settings.public_tests}, [source]) as result:
        result.write(records)
        result.summary = summary
    return problems_made(summary, "Tests", settings.output_file)


def _split_all(source: Path, problems: Sequence[Problem], public_tests: int) -> tuple[list[dict[str, Any]], Summary]:
    """The records of problems with public and hidden tests, and counts; warns of few hidden ones."""
    with naming(str(source)):
        records = [split_tests(problem, public_tests) for problem in problems]
    split = [Problem.parse(record) for record, one in zip(records, problems, strict=True) if record != one.record]
    few = sum(len(problem.hidden_tests) < ENOUGH_HIDDEN for problem in split)
    if few:
        logger.warning(
            "%d of %d problems have fewer than %d hidden tests, which a wrong program may pass",
            *(few, len(problems), ENOUGH_HIDDEN),
        )
    return records, {
        "problems": {"read": len(problems), "split": len(split), "left as they are": len(problems) - len(split)},
        "tests of those split": {
            "public": sum(len(problem.public_tests) for problem in split),
            "hidden": sum(len(problem.hidden_tests) for problem in split),
        },
    }
