"""Turn HumanEval, HumanEval+ and MBPP+ into problems: a function to write, and one check of many calls.

HumanEval (Chen et al. 2021, arXiv 2107.03374) has the fields `task_id`, `prompt`, `entry_point`, `canonical_solution`
and `test`, which defines `check(candidate)`. Those of EvalPlus (Liu et al. 2023, arXiv 2305.01210) are read as they are
on the Hugging Face Hub: HumanEval+ has HumanEval's fields; MBPP+ has `task_id`, `prompt`, `code`, `test_imports`,
`test_list` and `test`, a script.

A check becomes one test (`cobalt.judge.asserting`). Which calls it makes is recorded with the reference program, in a
sandbox (`cobalt.datasets.recorder`). A problem whose reference its check or the judge refuses is left out and counted.
"""

import ast
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import pydantic.dataclasses

from cobalt.datasets import recorder
from cobalt.datasets.assertions import assertion_suite, imports_for, parsed
from cobalt.datasets.sources import (
    InstructionPrompts,
    ProblemsFile,
    Revision,
    decoded,
    digest,
    field_of,
    local_rows,
    none_left,
    optional,
    problem_record,
    read_each,
    render,
    text_of,
    texts_of,
)
from cobalt.episode import PromptSet, load_prompts
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.judge.inside import numpy_stand_in
from cobalt.problems.hub import hub_rows
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError, last_line
from cobalt.stage.progress import track
from cobalt.stage.run import OptionalInput, Outcome, problems_made, stage, whole
from cobalt.stage.tally import Tally, with_first

logger = logging.getLogger(__name__)

DataSet = Literal["humaneval", "humaneval_plus", "mbpp_plus"]
HUB_NAMES: dict[DataSet, str] = {
    "humaneval": "openai/openai_humaneval",
    "humaneval_plus": "evalplus/humanevalplus",
    "mbpp_plus": "evalplus/mbppplus",
}

REFUSED = "the check or the judge refuses the reference"

# EvalPlus writes its checks over a list of inputs. None of HumanEval's 164 has this name.
_PLUS_INPUTS = re.compile(r"^\s*inputs\s*=", re.MULTILINE)
_NUMPY = re.compile(r"^import numpy as np[ \t]*$", re.MULTILINE)


@pydantic.dataclasses.dataclass(frozen=True)
class HumanEvalSettings:
    """Turn HumanEval, HumanEval+ or MBPP+ into problems; each reference program is judged in this process.

    Needs no service.
    """

    output_file: ProblemsFile
    input_file: OptionalInput = None
    """Local JSONL (also .jsonl.gz) or Parquet file in the data set's schema; default: the data set by its name."""
    data_set: DataSet = "humaneval"
    """HumanEval, or HumanEval+ or MBPP+ as EvalPlus publishes them on the Hugging Face Hub."""
    revision: Revision = "main"
    prompts: InstructionPrompts = "paper"


class Task(NamedTuple):
    """A row, read: the check runs without the program, and `shown` are the assertions of the statement."""

    id: str
    fn_name: str
    question: str
    reference: str
    check: str
    shown: TestSuite


@stage
async def humaneval(settings: HumanEvalSettings, judge: LocalJudge | None = None) -> Outcome:
    """Write the problems in the file's order, and count them; `judge` judges the reference programs.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
        InfrastructureError: the judge failed; nothing is written.
    """
    prompts = load_prompts(settings.prompts)
    tally = Tally()
    async with LocalJudge(JudgeSettings.from_environment()) if judge is None else nullcontext(judge) as local:
        arguments = {
            "stage": settings.data_set,
            "source": "file" if settings.input_file else f"{HUB_NAMES[settings.data_set]}@{settings.revision}",
            "prompts": prompts.digests,
            "texts": {name: digest(name) for name in ("complete", "question_with_tests")},
            "judge": dict(await local.describe()),
        }
        with whole(settings.output_file, arguments, [settings.input_file] if settings.input_file else []) as result:
            records = []
            for task in track(list(read_tasks(settings, tally)), desc=settings.data_set, unit="task"):
                suite = await recorded_suite(task, local)
                if suite is None:
                    tally.leave_out(REFUSED, task.id)
                    continue
                tally["calls"] += sum(script.count("\n") + 1 for script in suite.inputs)
                records.append(_record(task, suite, prompts))
            if not records:
                raise none_left(tally, tally.first)
            result.write(records)
            left_out = {f"left out: {why}": tally[why] for why in dict.fromkeys((REFUSED, *tally.first))}
            counts = {"read": tally["read"], **left_out, "kept": len(records), "calls": tally["calls"]}
            result.summary = with_first({"problems": counts}, tally)
    return problems_made(result.summary, settings.data_set, settings.output_file)


def read_tasks(settings: HumanEvalSettings, tally: Tally) -> Iterator[Task]:
    """The tasks of the file or data set, in its order; rows are counted, with those that cannot be read."""
    name, advice = HUB_NAMES[settings.data_set], "give a local copy by --input_file"
    rows = local_rows(settings.input_file) if settings.input_file else hub_rows(name, "test", settings.revision, advice)
    readers = {"humaneval": _completion_task, "humaneval_plus": _plus_task, "mbpp_plus": _mbpp_plus_task}
    return read_each(rows, readers[settings.data_set], "task_id", tally)


async def recorded_suite(task: Task, judge: LocalJudge) -> TestSuite | None:
    """The suite of a task's check; None if its check or the judge refuses the reference, or no call is recorded.

    Raises:
        InfrastructureError: the judge failed.
    """
    request = json.dumps({"program": task.reference, "fn_name": task.fn_name, "check": task.check})
    run = await judge.execute(_program_of(recorder), request)
    calls = None if isinstance(run, str) else decoded(run.stdout)
    if isinstance(run, str):
        why = run
    elif run.end != "exit" or run.status != 0 or run.output_bytes > judge.settings.output_bytes:
        why = last_line(run.stderr.decode("utf-8", "replace")) or run.end
    elif not calls or not isinstance(calls, list) or not all(isinstance(call, str) for call in calls):
        why = "no call of its function by its check could be recorded"  # such as where the reference writes as well
    else:
        suite = replace(task.shown, inputs=("\n".join(calls),), outputs=(task.check,))
        result = await judge.judge(task.reference, suite)
        if result.all_passed:
            return suite
        why = f"the judge says {result.verdicts[0].kind}"
    logger.warning("%s is left out, because its reference is refused: %s", task.id, why)
    return None


def _record(task: Task, hidden: TestSuite, prompts: PromptSet) -> dict[str, Any]:
    shown = task.shown
    every = replace(hidden, inputs=shown.inputs + hidden.inputs, outputs=shown.outputs + hidden.outputs)
    instruction = prompts.first_turn(task.question, task.fn_name)
    return problem_record(task.id, task.question, instruction, every, shown, hidden)


def _plus_task(row: Mapping[str, Any]) -> Task:
    if _PLUS_INPUTS.search(text_of(row, "test")) is None:
        raise UserError(
            "field 'test' has no list 'inputs', which every check of HumanEval+ has: give the rows of"
            f" {HUB_NAMES['humaneval_plus']}, or --data_set humaneval for those of HumanEval"
        )
    return _completion_task(row)


def _completion_task(row: Mapping[str, Any]) -> Task:
    prompt, name, test = text_of(row, "prompt"), text_of(row, "entry_point"), text_of(row, "test")
    tree = parsed(prompt, "field 'prompt'")
    tree.body = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    helpers = ast.unparse(tree)
    calls_itself = re.search(r"^check\(", test, re.MULTILINE) is not None  # as the original harness would
    return Task(
        text_of(row, "task_id"),
        name,
        render("complete", prompt=prompt.strip()),
        prompt + text_of(row, "canonical_solution"),
        _ready(f"{helpers}\n{test}\n{'' if calls_itself else f'check({name})'}\n", name),
        TestSuite((), (), name, True, prelude=helpers),
    )


def _mbpp_plus_task(row: Mapping[str, Any]) -> Task:
    identifier = str(field_of(row, "task_id", str, int)).removeprefix("Mbpp/")
    code, shown = text_of(row, "code"), texts_of(row, "test_list")
    imports = "\n".join(optional(row, "test_imports", texts_of, []))
    suite = assertion_suite(shown, code, imports=imports)
    assert suite.fn_name is not None
    question = render("question_with_tests", text=text_of(row, "prompt").strip(), tests=shown)
    check = _ready(f"{imports}\n{text_of(row, 'test')}\n", suite.fn_name)
    return Task(f"MBPP+/{identifier}", suite.fn_name, question, code, check, suite)


def _ready(check: str, name: str) -> str:
    """A check that can be run without numpy and asks for the same calls each time."""
    stand_in = _program_of(numpy_stand_in)
    check = _NUMPY.sub(lambda _: stand_in[stand_in.index("from typing") :].rstrip(), check).strip() + "\n"
    imports = imports_for(check, {name})
    seed = "import random\nrandom.seed(0)\n" if re.search(r"\brandom\b", check) else ""
    return seed + imports + check


@cache
def _program_of(module: ModuleType) -> str:
    """The source of a module that is run in a sandbox."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")
