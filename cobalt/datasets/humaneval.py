"""Turn HumanEval (Chen et al. 2021, arXiv 2107.03374) into problems: a function to write, and one check of many calls.

Its fields are `task_id`, `prompt`, `entry_point`, `canonical_solution` and `test`, which defines `check(candidate)`. A
check becomes one test (`cobalt.judge.asserting`). Which calls it makes is recorded with the reference program, in a
sandbox (`cobalt.datasets.recorder`). A problem whose reference its check or the judge refuses is left out and counted.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import pydantic.dataclasses

from cobalt.datasets import recorder
from cobalt.datasets.assertions import imports_for, parsed
from cobalt.datasets.sources import (
    InstructionPrompts,
    ProblemsFile,
    Revision,
    decoded,
    digest,
    hub_rows,
    local_rows,
    problem_record,
    read_each,
    render,
    text_of,
    write_counted,
)
from cobalt.episode import load_prompts
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import TestSuite
from cobalt.stage.progress import track
from cobalt.stage.run import OptionalInput, Outcome, problems_made, stage, whole
from cobalt.stage.tally import Tally

DATA_SET = "openai/openai_humaneval"
REFUSED = "the check or the judge refuses the reference"


@pydantic.dataclasses.dataclass(frozen=True)
class HumanEvalSettings:
    """Turn HumanEval into problems; each reference program is judged in this process. Needs no service."""

    output_file: ProblemsFile
    input_file: OptionalInput = None
    """Local JSONL (also .jsonl.gz) or Parquet file in the data set's schema; default: the data set by its name."""
    revision: Revision = "main"
    prompts: InstructionPrompts = "paper"


class Task(NamedTuple):
    """A row, read: the check runs without the program, and `helpers` before it."""

    id: str
    fn_name: str
    question: str
    reference: str
    check: str
    helpers: str


@stage
async def humaneval(settings: HumanEvalSettings, judge: LocalJudge | None = None) -> Outcome:
    """Write the problems in the file's order, and count them; `judge` judges the reference programs.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
        InfrastructureError: the judge failed; nothing is written.
    """
    prompts = load_prompts(settings.prompts)
    tally = Tally()
    records: list[dict[str, Any]] = []
    async with LocalJudge(JudgeSettings.read()) if judge is None else nullcontext(judge) as local:
        arguments = {
            "stage": "humaneval",
            "source": "file" if settings.input_file else f"{DATA_SET}@{settings.revision}",
            "prompts": prompts.digests,
            "texts": {name: digest(name) for name in ("complete", "question_with_tests")},
            "judge": dict(await local.describe()),
        }
        with whole(settings.output_file, arguments, [settings.input_file] if settings.input_file else []) as result:
            for task in track(list(read_tasks(settings, tally)), desc="HumanEval", unit="task"):
                suite = await recorded_suite(task, local)
                if suite is None:
                    tally.leave_out(REFUSED, task.id)
                    continue
                tally["calls"] += sum(script.count("\n") + 1 for script in suite.inputs)
                instruction = prompts.first_turn(task.question, task.fn_name)
                records.append(problem_record(task.id, task.question, instruction, suite, suite.select(()), suite))
            write_counted(result, records, tally)
    return problems_made(result.summary, "HumanEval", settings.output_file, settings.prompts)


def read_tasks(settings: HumanEvalSettings, tally: Tally) -> Iterator[Task]:
    """The tasks of the file or data set, in its order; rows are counted, with those that cannot be read."""
    file = settings.input_file
    rows = local_rows(file) if file else hub_rows(DATA_SET, "test", settings.revision)
    return read_each(rows, _task, "task_id", tally)


async def recorded_suite(task: Task, judge: LocalJudge) -> TestSuite | None:
    """The suite of a task's check; None if its check or the judge refuses the reference, or no call is recorded.

    Raises:
        InfrastructureError: the judge failed.
    """
    request = json.dumps({"program": task.reference, "fn_name": task.fn_name, "check": task.check})
    run = await judge.execute(inspect.getsource(recorder), request)
    if isinstance(run, str) or run.end != "exit" or run.status != 0 or run.output_bytes > judge.settings.output_bytes:
        return None
    calls = decoded(run.stdout)
    if not calls or not isinstance(calls, list) or not all(isinstance(call, str) for call in calls):
        return None  # such as where the reference writes as well
    suite = TestSuite(("\n".join(calls),), (task.check,), task.fn_name, True, prelude=task.helpers)
    return suite if (await judge.judge(task.reference, suite)).all_passed else None


def _task(row: Mapping[str, Any]) -> Task:
    prompt, name, test = text_of(row, "prompt"), text_of(row, "entry_point"), text_of(row, "test")
    tree = parsed(prompt, "field 'prompt'")
    tree.body = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    helpers = ast.unparse(tree)
    check = f"{helpers}\n{test}\ncheck({name})".strip() + "\n"
    seed = "import random\nrandom.seed(0)\n" if re.search(r"\brandom\b", check) else ""  # the same calls each time
    return Task(
        text_of(row, "task_id"),
        name,
        render("complete", prompt=prompt.strip()),
        prompt + text_of(row, "canonical_solution"),
        seed + imports_for(check, {name}) + check,
        helpers,
    )
