"""The recorded programs of APPS-like problems: `human_solutions`, which are right, and judged `generated_solutions`.

A `result` is true (all tests passed), false (a wrong output), -1 (an error while it ran, or too slow) or -2 (not a
program), as CodeRL records it. Nothing is judged here.
"""

from collections.abc import Mapping
from typing import Any

from cobalt.datasets.offline.contrast import Candidate, plain
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.results import UNKNOWN_RESULT, Dropped, JudgedRecord, judged_record
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.episode import PromptSet, opening_messages
from cobalt.problems.problem import Problem, has_tests
from cobalt.stage.errors import UserError


def read_recorded_programs(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The programs of an APPS-like record.

    Raises:
        UserError: the record is malformed, or pass rates are needed, which it does not have.
    """
    solutions, generated = record.get("human_solutions"), record.get("generated_solutions")
    if solutions is None and generated is None:
        raise UserError("it has neither judged responses nor 'human_solutions' or 'generated_solutions'")
    if settings.rewards_from == "recorded":
        raise UserError("its programs have no recorded pass rates: leave --rewards_from at status")
    solutions, generated = solutions or [], generated or []
    if not isinstance(solutions, list) or not all(isinstance(code, str) for code in solutions):
        raise UserError("field 'human_solutions' must be a list of programs")
    if not isinstance(generated, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("code"), str) for entry in generated
    ):
        raise UserError("field 'generated_solutions' must be a list of objects with a 'code'")
    codes: list[tuple[str, Status | None, str]]
    codes = [(code, Status.ACCEPTED, f"human_solutions/{index}") for index, code in enumerate(solutions)]
    codes += [(one["code"], _status(one), f"generated_solutions/{index}") for index, one in enumerate(generated)]
    programs = [
        Dropped(UNKNOWN_RESULT, origin)
        if status is None
        else Candidate(plain(code), status, settings.rewards.of(status), origin)
        for code, status, origin in codes
    ]
    if not has_tests(record, "test_cases"):
        statement: str = record.get("question") or record["instruction"]
        messages = opening_messages(prompts.first_turn(statement), prompts)
        return JudgedRecord(statement, None, messages, programs, None)
    problem = Problem.parse(record)
    messages = opening_messages(prompts.first_turn(problem.question, problem.tests.fn_name), prompts)
    return judged_record(problem, messages, programs)


def _status(entry: Mapping[str, Any]) -> Status | None:
    result = entry.get("result")
    if isinstance(result, bool):
        return Status.ACCEPTED if result else Status.WRONG_ANSWER
    if result == -1:
        timed_out = "timeout" in str(entry.get("error_type")).lower()
        return Status.TIME_LIMIT if timed_out else Status.RUNTIME_ERROR
    return Status.COMPILE_ERROR if result == -2 else None
