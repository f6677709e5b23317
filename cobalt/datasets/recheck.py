"""Judge recorded programs again and compare each verdict with the recorded one.

Two kinds of file are read: responses of a model with a recorded verdict (`recorded_response`,
`recorded_all_tests_pass`), and problems with accepted human solutions (`human_solutions`).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cobalt.episode.program import extract_code
from cobalt.judge.local import Judge
from cobalt.judge.verdict import ExecResult
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError, naming
from cobalt.stage.rows import read_rows


class Recheck(NamedTuple):
    """One program judged again: the recorded verdict and this judge's result."""

    name: str
    recorded: bool
    result: ExecResult

    @property
    def agrees(self) -> bool:
        """Whether the recorded verdict and this judge's agree on the whole suite."""
        return self.result.all_passed == self.recorded


async def recheck(path: Path, judge: Judge) -> list[Recheck]:
    """Judge every recorded program of a file again, in the file's order.

    Raises:
        UserError: the file cannot be read, or a line has neither kind of program.
    """

    async def one(suite: TestSuite, name: str, recorded: bool, code: str | None) -> Recheck:
        result = ExecResult.no_code(len(suite)) if code is None else await judge.judge(code, suite)
        return Recheck(name, recorded, result)

    programs: list[tuple[TestSuite, str, bool, str | None]] = []
    for place, record in read_rows(path):
        with naming(f"{path}, {place}"):
            suite = TestSuite.parse(record.get("test_cases"))
            programs += [(suite, *program) for program in _programs(record)]
    return list(await asyncio.gather(*(one(*program) for program in programs)))


def _programs(record: dict[str, Any]) -> Sequence[tuple[str, bool, str | None]]:
    name = str(record.get("id"))
    response, solutions = record.get("recorded_response"), record.get("human_solutions")
    if isinstance(response, str):
        return [(name, bool(record.get("recorded_all_tests_pass")), extract_code(response))]
    if isinstance(solutions, list):
        return [(f"{name}, solution {place}", True, code) for place, code in enumerate(solutions)]
    raise UserError("the record has neither 'recorded_response' nor 'human_solutions'")
