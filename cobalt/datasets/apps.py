"""Turn APPS (Hendrycks et al. 2021, arXiv 2105.09938) and APPS+ (Dou et al. 2024, arXiv 2402.01391) into problems.

APPS has the fields `problem_id`, `question`, `solutions`, `input_output`, `difficulty` and `starter_code`. APPS+ is one
JSON array whose items have `inputs`, `outputs`, `starter_code` and `canonical_solution`; `question` and `difficulty`
are expected as in APPS. Tests are on standard input or call a function, and all of them are hidden tests. Where they
can be read in several ways (`cobalt.datasets.readings`), recorded solutions decide; without one the reading of APPS's
grader holds. A row that cannot be read is left out and counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pydantic.dataclasses

from cobalt.datasets.judged_readings import passed_reading
from cobalt.datasets.readings import UnreadableTests, call_readings, text_readings
from cobalt.datasets.sources import field_of, local_rows, text_of
from cobalt.datasets.texts import with_starter_code
from cobalt.episode import load_prompts
from cobalt.judge import Judge, judge_or_local, programs_at_a_time
from cobalt.problems.hub import Row, hub_file
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.errors import tally as in_words
from cobalt.stage.manifest import write_summary
from cobalt.stage.rows import decode_json
from cobalt.stage.run import Each, OptionalInput, Outcome, Output, problems_made, stage
from cobalt.stage.tally import REPEATED, Summary, Tally, first_malformed, with_first

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

    output_file: Output
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: OptionalInput = None
    """Local file: JSONL or Parquet of APPS, or the JSON array of APPS+; default: the split of APPS by its name."""
    data_set: Literal["apps", "apps_plus"] = "apps"
    """APPS or APPS+."""
    split: Literal["train", "test"] = "test"
    """Split of APPS by its name."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    difficulty: tuple[Difficulty, ...] = DIFFICULTIES
    """Difficulties to keep."""
    max_solutions: int = 16
    """Most recorded solutions of a problem to judge, where its tests can be read in two ways."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range, or APPS+ is asked for by name."""
        if self.max_solutions < 0:
            raise UserError(f"max_solutions is {self.max_solutions}: it must be 0 or more")
        if self.data_set == "apps_plus" and self.input_file is None:
            raise UserError("APPS+ is not on the Hugging Face Hub: give its JSON file by --input_file")


@dataclass(frozen=True, slots=True)
class Task:
    """A row, read.

    Attributes:
        id: With the name of the data set before it.
        difficulty: As the data set has it; None if it has none.
        question: The statement; with the starter code, for problems that call a function.
        readings: What its tests may mean, the likelier first; none if there are no tests that can be read.
        programs: Recorded solutions, ready to be judged.
    """

    id: str
    difficulty: str | None
    question: str
    readings: tuple[TestSuite, ...]
    programs: tuple[str, ...]


@stage
async def apps(settings: AppsSettings, judge: Judge | None = None) -> Outcome:
    """Write the problems in the order of the source, and count them; running again after a stop continues.

    Args:
        settings: What to do.
        judge: Judges recorded solutions; None: a judge in this process.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
    """
    inputs = [settings.input_file] if settings.input_file else []
    prompts = load_prompts(settings.prompts)
    tally = Tally()
    async with judge_or_local(judge) as local:

        async def record(task: Task) -> dict[str, Any]:
            suite = await _suite(task, settings, local)
            return {
                "id": task.id,
                "difficulty": task.difficulty,
                "question": task.question,
                "instruction": prompts.first_turn(task.question, suite.fn_name),
                "test_cases": suite.to_json(),
            }

        arguments = {
            "stage": settings.data_set,
            "source": "file" if settings.input_file else f"{HUB_NAME}@{settings.revision}/{settings.split}",
            "difficulty": sorted(settings.difficulty),
            "max_solutions": settings.max_solutions,
            "prompts": prompts.digests,
            "judge": dict(await local.describe()),
        }
        with Each(settings.output_file, arguments, inputs) as result:
            summary = result.summary()
            if summary is None:
                failed = await result.make(
                    _tasks(settings, tally),
                    lambda task: task.id,
                    record,
                    concurrency=programs_at_a_time(),
                    description=settings.data_set,
                )
                if failed:
                    return Outcome(failed=failed)
                summary = _summary(tally)
                write_summary(settings.output_file, summary)
    return problems_made(summary, settings.data_set, settings.output_file)


def _tasks(settings: AppsSettings, tally: Tally) -> Iterator[Task]:
    """The tasks to keep, in the order of the source; rows are counted by what becomes of them."""
    read = read_apps if settings.data_set == "apps" else read_apps_plus
    seen: set[str] = set()
    for place, row in _rows(settings):
        tally["read"] += 1
        try:
            task = read(row)
        except UserError as error:
            tally.malformed(place, error, row.get("problem_id"))
            continue
        why = REPEATED if task.id in seen else _why_left_out(task, settings)
        seen.add(task.id)
        if why is not None:
            tally.leave_out(why, task.id)
            continue
        tally[task.difficulty or UNKNOWN] += 1
        yield task


def _summary(tally: Tally) -> Summary:
    kept = {name: tally[name] for name in (*DIFFICULTIES, UNKNOWN) if name != UNKNOWN or tally[name]}
    left_out = {name: tally[name] for name in tally.first}
    if not sum(kept.values()):
        raise UserError(f"no problem is left ({in_words(left_out)}{first_malformed(tally.first)})")
    return with_first({"rows": {"read": tally["read"]}, "kept": kept, "left out": left_out}, tally)


def _why_left_out(task: Task, settings: AppsSettings) -> str | None:
    """Why a task is left out; None if it is kept. Rows without a difficulty are kept unless some are asked for."""
    known = set(DIFFICULTIES) if task.difficulty is None else {task.difficulty}
    if not known <= set(settings.difficulty):
        return "another difficulty"
    return None if task.readings else "no tests that can be read"


async def _suite(task: Task, settings: AppsSettings, judge: Judge) -> TestSuite:
    if len(task.readings) == 1:
        return task.readings[0]
    return await passed_reading(judge, task.programs[: settings.max_solutions], task.readings) or task.readings[0]


def _rows(settings: AppsSettings) -> Iterator[Row]:
    """The rows of the source.

    Raises:
        UserError: the file cannot be read, or there is no network.
    """
    if settings.data_set == "apps_plus":
        assert settings.input_file is not None
        rows = enumerate(local_rows(settings.input_file))
        return ((place, {"problem_id": number} | row) for number, (place, row) in rows)
    advice = f"give a copy of {settings.split}.jsonl by --input_file"
    return local_rows(settings.input_file or hub_file(HUB_NAME, f"{settings.split}.jsonl", settings.revision, advice))


def read_apps(row: dict[str, Any]) -> Task:
    """Read a row of APPS.

    Raises:
        UserError: a field is missing or malformed; the message names it.
    """
    tests = _decoded(field_of(row, "input_output"))
    tests = tests if isinstance(tests, dict) else {}
    inputs, outputs, name = (tests.get(field) for field in ("inputs", "outputs", "fn_name"))
    solutions = _decoded(row.get("solutions"))
    programs = [text for text in solutions if isinstance(text, str)] if isinstance(solutions, list) else []
    return _task("APPS", row, _readings(name, inputs, outputs), programs)


def read_apps_plus(row: dict[str, Any]) -> Task:
    """Read an item of APPS+; the arguments of a test are a list, and the input of a program is a text.

    Raises:
        UserError: a field is missing or malformed; the message names it.
    """
    inputs, outputs = field_of(row, "inputs"), field_of(row, "outputs")
    starter = text_of(row, "starter_code") if row.get("starter_code") is not None else ""
    function = _FUNCTION.search(starter)
    if isinstance(inputs, list) and inputs and all(isinstance(item, list) for item in inputs) and function:
        readings = _readings(function[1], inputs, outputs)
        behind = ""
    else:
        readings = _readings(None, inputs, outputs)
        behind = f"\n{function[1]}()\n" if function else ""  # the recorded solution is a function that reads and prints
    solution = [] if row.get("canonical_solution") is None else [text_of(row, "canonical_solution")]
    return _task("APPS+", row, readings, [program + behind for program in solution])


def _task(name: str, row: dict[str, Any], readings: tuple[TestSuite, ...], programs: list[str]) -> Task:
    identifier = row.get("problem_id")
    if not isinstance(identifier, int | str) or isinstance(identifier, bool):
        raise UserError("field 'problem_id' is missing or neither an integer nor a string")
    question = text_of(row, "question").strip()
    if readings and readings[0].fn_name is not None:
        question = with_starter_code(question, row.get("starter_code"))
    difficulty = text_of(row, "difficulty") if row.get("difficulty") is not None else None
    return Task(f"{name}/{identifier}", difficulty, question, readings, tuple(programs))


def _readings(fn_name: object, inputs: object, outputs: object) -> tuple[TestSuite, ...]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        return ()
    try:
        return call_readings(fn_name, inputs, outputs) if fn_name else text_readings(inputs, outputs, "lines")
    except UnreadableTests:
        return ()


def _decoded(value: object) -> Any:
    """The JSON value of a text; None if it is empty or not JSON, as in rows without tests or solutions.

    Copies of the data set in other forms have the value itself.
    """
    if not isinstance(value, str):
        return value
    try:
        return decode_json(value)
    except UserError:
        return None
