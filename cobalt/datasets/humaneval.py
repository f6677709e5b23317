"""Turn HumanEval, HumanEval+ and MBPP+ into problems: a function to write, and one check of many calls.

HumanEval (Chen et al. 2021, arXiv 2107.03374) has the fields `task_id`, `prompt`, `entry_point`, `canonical_solution`
and `test`, which defines `check(candidate)`. The rows of EvalPlus (Liu et al. 2023, arXiv 2305.01210) are those that
its authors publish on the Hugging Face Hub: HumanEval+ has HumanEval's fields; MBPP+ has `task_id`, `prompt`, `code`,
`test_imports`, `test_list` and `test`, a script. Rows of its release files are brought into this form first
(`cobalt.datasets.evalplus`).

A check becomes one test (`cobalt.judge.asserting`). Which calls it makes is recorded with the reference program, in a
sandbox (`cobalt.datasets.recorder`). A problem whose reference is refused, by its own check or by the judge, is left
out and counted.
"""

import ast
import functools
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pydantic.dataclasses

from cobalt.datasets import recorder
from cobalt.datasets.assertions import assertion_suite, imports_for, parsed
from cobalt.datasets.evalplus import humaneval_plus_row, is_release_row, mbpp_plus_row
from cobalt.datasets.sources import local_rows, text_of, texts_of
from cobalt.datasets.texts import digest, render
from cobalt.episode import PromptSet, load_prompts
from cobalt.judge import LocalJudge, judge_or_local
from cobalt.judge.inside import numpy_stand_in
from cobalt.problems.hub import hub_rows
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError, last_line
from cobalt.stage.errors import tally as in_words
from cobalt.stage.progress import track
from cobalt.stage.rows import decode_json
from cobalt.stage.run import OptionalInput, Outcome, Output, problems_made, stage, whole
from cobalt.stage.tally import REPEATED, Tally, first_malformed, with_first

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

    output_file: Output
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: OptionalInput = None
    """Local JSONL (also .jsonl.gz) or Parquet file in the data set's schema; default: the data set by its name."""
    data_set: DataSet = "humaneval"
    """HumanEval, or HumanEval+ or MBPP+ as EvalPlus publishes them, on the Hugging Face Hub or as a release."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row, read.

    Attributes:
        id: As the data set has it; that of MBPP+ with "MBPP+/" before it.
        fn_name: The function to write.
        question: The statement.
        reference: A right program.
        check: The check, ready to be run without the program.
        shown: Assertions that the statement shows, as tests; empty for HumanEval.
    """

    id: str
    fn_name: str
    question: str
    reference: str
    check: str
    shown: TestSuite


@stage
async def humaneval(settings: HumanEvalSettings, judge: LocalJudge | None = None) -> Outcome:
    """Write the problems in the file's order, and count them.

    Args:
        settings: What to do.
        judge: Judges the reference programs; None: one in this process.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
        InfrastructureError: the judge failed; nothing is written.
    """
    prompts = load_prompts(settings.prompts)
    tally = Tally()
    async with judge_or_local(judge) as local:
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
                raise UserError(f"no problem is left ({in_words(tally)}{first_malformed(tally.first)})")
            result.write(records)
            left_out = {f"left out: {why}": tally[why] for why in dict.fromkeys((REFUSED, *tally.first))}
            counts = {"read": tally["read"], **left_out, "kept": len(records), "calls": tally["calls"]}
            result.summary = with_first({"problems": counts}, tally)
    return problems_made(result.summary, settings.data_set, settings.output_file)


def read_tasks(settings: HumanEvalSettings, tally: Tally) -> Iterator[Task]:
    """The tasks of the file or data set, in its order; rows are counted, with those that cannot be read.

    Raises:
        UserError: the file cannot be read.
    """
    read = _READERS[settings.data_set]
    advice = "give a local copy by --input_file"
    rows = (
        local_rows(settings.input_file)
        if settings.input_file
        else hub_rows(HUB_NAMES[settings.data_set], "test", settings.revision, advice)
    )
    seen: set[str] = set()
    for place, row in rows:
        tally["read"] += 1
        try:
            task = read(row)
        except UserError as error:
            tally.malformed(place, error, row.get("task_id"))
            continue
        if task.id in seen:
            tally.leave_out(REPEATED, task.id)
            continue
        seen.add(task.id)
        yield task


async def recorded_suite(task: Task, judge: LocalJudge) -> TestSuite | None:
    """The suite of a task's check; None if its check or the judge refuses the reference, or no call is recorded.

    Raises:
        InfrastructureError: the judge failed.
    """
    request = json.dumps({"program": task.reference, "fn_name": task.fn_name, "check": task.check})
    run = await judge.execute(_program_of(recorder), request, judge.settings)
    too_long = not isinstance(run, str) and run.output_bytes > judge.settings.output_bytes
    if isinstance(run, str) or run.end != "exit" or run.status != 0 or too_long:
        reason = run if isinstance(run, str) else last_line(run.stderr.decode("utf-8", "replace")) or run.end
        logger.warning("%s is left out: its check refuses its reference (%s)", task.id, reason)
        return None
    calls = _calls(run.stdout)
    if calls is None:
        logger.warning("%s is left out: no call of its function by its check could be recorded", task.id)
        return None
    suite = replace(task.shown, inputs=("\n".join(calls),), outputs=(task.check,))
    result = await judge.judge(task.reference, suite)
    if not result.all_passed:
        logger.warning("%s is left out: the judge refuses its reference (%s)", task.id, result.verdicts[0].kind)
        return None
    return suite


def _calls(recorded: bytes) -> list[str] | None:
    """The calls that the recorder wrote; None if there is none, or if the reference or the check wrote in its place."""
    try:
        calls = decode_json(recorded)
    except UserError:
        return None
    return calls if isinstance(calls, list) and calls and all(isinstance(call, str) for call in calls) else None


def _record(task: Task, hidden: TestSuite, prompts: PromptSet) -> dict[str, Any]:
    shown = task.shown
    every = replace(hidden, inputs=shown.inputs + hidden.inputs, outputs=shown.outputs + hidden.outputs)
    return {
        "id": task.id,
        "question": task.question,
        "instruction": prompts.first_turn(task.question, task.fn_name),
        "test_cases": every.to_json(),
        "public_test_cases": shown.to_json(),
        "hidden_test_cases": hidden.to_json(),
    }


def _humaneval_task(row: dict[str, Any]) -> Task:
    if is_release_row(row):
        raise UserError("field 'plus_input' is one of HumanEval+: give --data_set humaneval_plus")
    return _completion_task(row)


def _completion_task(row: dict[str, Any]) -> Task:
    prompt, name, test = text_of(row, "prompt"), text_of(row, "entry_point"), text_of(row, "test")
    helpers = _without_function(prompt, name)
    call = "" if _calls_check(test) else f"check({name})\n"
    return Task(
        text_of(row, "task_id"),
        name,
        render("complete", prompt=prompt.strip()),
        prompt + text_of(row, "canonical_solution"),
        _ready(f"{helpers}\n{test}\n{call}", name),
        TestSuite((), (), name, True, prelude=helpers),
    )


def _humaneval_plus_task(row: dict[str, Any]) -> Task:
    if is_release_row(row):
        return _completion_task(humaneval_plus_row(row))
    if _PLUS_INPUTS.search(text_of(row, "test")) is None:
        raise UserError(
            "field 'test' has no list 'inputs', which every check of HumanEval+ has: give the rows of"
            f" {HUB_NAMES['humaneval_plus']}, or --data_set humaneval for those of HumanEval"
        )
    return _completion_task(row)


def _mbpp_plus_task(row: dict[str, Any]) -> Task:
    if is_release_row(row):
        row = mbpp_plus_row(row)
    identifier = row.get("task_id")
    if not isinstance(identifier, int | str):
        raise UserError("field 'task_id' is missing or neither a string nor an integer")
    code, shown = text_of(row, "code"), texts_of(row, "test_list")
    imports = "\n".join(texts_of(row, "test_imports")) if row.get("test_imports") is not None else ""
    suite = assertion_suite(shown, code, imports)
    suite = replace(suite, outputs=tuple(f"{imports}\n{check}".lstrip() for check in suite.outputs))
    assert suite.fn_name is not None
    question = render("question_with_tests", text=text_of(row, "prompt").strip(), tests=shown)
    check = _ready(f"{imports}\n{text_of(row, 'test')}\n", suite.fn_name)
    return Task(f"MBPP+/{str(identifier).removeprefix('Mbpp/')}", suite.fn_name, question, code, check, suite)


_READERS: dict[DataSet, Callable[[dict[str, Any]], Task]] = {
    "humaneval": _humaneval_task,
    "humaneval_plus": _humaneval_plus_task,
    "mbpp_plus": _mbpp_plus_task,
}


def _ready(check: str, name: str) -> str:
    """A check that can be run without numpy and asks for the same calls each time.

    Raises:
        UserError: it is not Python.
    """
    stand_in = _program_of(numpy_stand_in)
    check = _NUMPY.sub(lambda _: stand_in[stand_in.index("from typing") :].rstrip(), check).strip() + "\n"
    imports = imports_for(check, {name})
    seed = "import random\nrandom.seed(0)\n" if re.search(r"\brandom\b", check) else ""
    return seed + imports + check


def _without_function(prompt: str, name: str) -> str:
    """What a prompt has besides the function to complete: imports and helper functions.

    Raises:
        UserError: the prompt is not Python.
    """
    tree = parsed(prompt, "field 'prompt'")
    tree.body = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    return ast.unparse(tree)


@functools.cache
def _program_of(module: ModuleType) -> str:
    """The source of a module that is run in a sandbox."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def _calls_check(test: str) -> bool:
    """Whether a test already ends with the call of `check` that the original harness adds."""
    return re.search(r"^check\(", test, re.MULTILINE) is not None
