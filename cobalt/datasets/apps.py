"""Turn APPS (Hendrycks et al. 2021, arXiv 2105.09938) and APPS+ (Dou et al. 2024, arXiv 2402.01391) into problems.

APPS has the fields `problem_id`, `question`, `solutions`, `input_output`, `difficulty` and `starter_code`. APPS+ is one
JSON array whose items have `inputs`, `outputs`, `starter_code` and `canonical_solution`; `question` and `difficulty`
are expected as in APPS. All tests are hidden. Where they can be read in several ways (`cobalt.datasets.readings`),
recorded solutions decide; without one the reading of APPS's grader holds.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import pydantic.dataclasses

from cobalt.datasets.readings import Task, UnreadableTests, call_readings, passed_reading, text_readings
from cobalt.datasets.sources import (
    InstructionPrompts,
    ProblemsFile,
    Revision,
    Row,
    check_not_empty,
    decoded,
    field_of,
    hub_file,
    judge_each,
    local_rows,
    optional,
    problem_record,
    read_each,
    text_of,
    with_starter_code,
)
from cobalt.episode import load_prompts
from cobalt.judge import Judge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.run import Each, OptionalInput, Outcome, check_ranges, problems_made, stage
from cobalt.stage.tally import Summary, Tally, with_first

HUB_NAME = "codeparrot/apps"
Difficulty = Literal["introductory", "interview", "competition"]
DIFFICULTIES: tuple[Difficulty, ...] = ("introductory", "interview", "competition")
UNKNOWN = "unknown difficulty"

_FUNCTION = re.compile(r"^[ \t]*def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)


@pydantic.dataclasses.dataclass(frozen=True)
class AppsSettings:
    """Turn APPS or APPS+ into problems; recorded solutions are judged in this process where tests have two meanings.

    Needs no service. Running the same command again resumes.
    """

    output_file: ProblemsFile
    input_file: OptionalInput = None
    """Local file: JSONL or Parquet of APPS, or the JSON array of APPS+; default: the split of APPS by its name."""
    data_set: Literal["apps", "apps_plus"] = "apps"
    """APPS or APPS+."""
    split: Literal["train", "test"] = "test"
    """Split of APPS by its name."""
    revision: Revision = "main"
    difficulty: tuple[Difficulty, ...] = DIFFICULTIES
    """Difficulties to keep."""
    max_solutions: int = 16
    """Most recorded solutions of a problem to judge, where its tests can be read in two ways."""
    prompts: InstructionPrompts = "paper"

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range, or APPS+ is asked for by name."""
        check_ranges(self, ("max_solutions", self.max_solutions >= 0, "0 or more"))
        if self.data_set == "apps_plus" and self.input_file is None:
            raise UserError("APPS+ is not on the Hugging Face Hub: give its JSON file by --input_file")


@stage
async def apps(settings: AppsSettings, judge: Judge | None = None) -> Outcome:
    """Write the problems in the order of the source, and count them; `judge` judges the recorded solutions.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    tally = Tally()
    async with using_judge(judge) as local:

        async def record(task: Task) -> dict[str, Any]:
            suite = None
            if len(task.readings) > 1:
                suite = await passed_reading(local, task.programs[: settings.max_solutions], task.readings)
            suite = suite or task.readings[0]
            instruction = prompts.first_turn(task.question, suite.fn_name)
            return problem_record(task.id, task.question, instruction, suite, difficulty=task.difficulty)

        arguments = {
            "stage": settings.data_set,
            "source": "file" if settings.input_file else f"{HUB_NAME}@{settings.revision}/{settings.split}",
            "difficulty": sorted(settings.difficulty),
            "max_solutions": settings.max_solutions,
            "prompts": prompts.digests,
            "judge": dict(await local.describe()),
        }
        result = Each(settings.output_file, arguments, [settings.input_file] if settings.input_file else [])
        made = await judge_each(result, _tasks(settings, tally), record, partial(_summary, tally))
    if made.failed:
        return made
    return problems_made(made.summary, settings.data_set, settings.output_file, settings.prompts)


def _tasks(settings: AppsSettings, tally: Tally) -> Iterator[Task]:
    """The tasks to keep; those without a difficulty are kept unless some difficulties are asked for."""
    read = read_apps if settings.data_set == "apps" else read_apps_plus
    for task in read_each(_rows(settings), read, "problem_id", tally):
        possible = {task.difficulty} if task.difficulty is not None else set(DIFFICULTIES)
        if not possible <= set(settings.difficulty):
            tally.leave_out("another difficulty", task.id)
        elif not task.readings:
            tally.leave_out("no tests that can be read", task.id)
        else:
            tally["kept"] += 1
            tally[task.difficulty or UNKNOWN] += 1
            yield task


def _summary(tally: Tally) -> Summary:
    check_not_empty(tally)
    problems = {name: tally[name] for name in (*DIFFICULTIES, UNKNOWN) if tally[name]}
    left_out = {name: tally[name] for name in tally.first}
    return with_first({"rows": {"read": tally["read"]}, "kept": problems, "left out": left_out}, tally)


def _rows(settings: AppsSettings) -> Iterator[Row]:
    """The rows of the source; those of APPS+ get their number in the file as `problem_id`."""
    rows = local_rows(settings.input_file or hub_file(HUB_NAME, f"{settings.split}.jsonl", settings.revision))
    for number, (position, row) in enumerate(rows):
        yield position, row if settings.data_set == "apps" else {"problem_id": number} | row


def read_apps(row: Mapping[str, Any]) -> Task:
    """Read a row of APPS; raises UserError, which names the field, if one is bad."""
    tests, solutions = decoded(row.get("input_output")), decoded(row.get("solutions"))
    tests = tests if isinstance(tests, dict) else {}
    programs = [text for text in solutions if isinstance(text, str)] if isinstance(solutions, list) else []
    return _task("APPS", row, tests.get("fn_name"), tests.get("inputs"), tests.get("outputs"), programs)


def read_apps_plus(row: Mapping[str, Any]) -> Task:
    """Read an item of APPS+, where the arguments of a test are a list, and the input of a program is a text."""
    inputs, outputs = row.get("inputs"), row.get("outputs")
    function = _FUNCTION.search(optional(row, "starter_code", text_of, ""))
    called = function is not None and isinstance(inputs, list) and all(isinstance(item, list) for item in inputs)
    # Where tests are texts, the recorded solution is a function that reads and prints.
    call = f"\n{function[1]}()\n" if function and not called else ""
    solution = optional(row, "canonical_solution", text_of, None)
    programs = [] if solution is None else [solution + call]
    return _task("APPS+", row, function[1] if function and called else None, inputs, outputs, programs)


def _task(
    name: str, row: Mapping[str, Any], fn_name: object, inputs: object, outputs: object, programs: list[str]
) -> Task:
    readings: tuple[TestSuite, ...] = ()
    if isinstance(inputs, list) and isinstance(outputs, list) and 0 < len(inputs) == len(outputs):
        with suppress(UnreadableTests):
            readings = call_readings(fn_name, inputs, outputs) if fn_name else text_readings(inputs, outputs)[::-1]
    identifier = field_of(row, "problem_id", int, str)
    question = text_of(row, "question").strip()
    if readings and readings[0].fn_name is not None:
        question = with_starter_code(question, row.get("starter_code"))
    return Task(f"{name}/{identifier}", optional(row, "difficulty", text_of, None), question, readings, tuple(programs))
