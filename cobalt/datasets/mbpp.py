"""Turn MBPP (Austin et al. 2021, arXiv 2108.07732) into problems: 974 tasks with a program and three assertions each.

Each assertion becomes a test (`cobalt.datasets.assertions`). As in the original, the prompt shows the assertions, and
the same assertions decide. The sanitized release has `prompt` for `text`, and `test_imports` for `test_setup_code`.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import pydantic.dataclasses

from cobalt.datasets.assertions import assertion_suite
from cobalt.datasets.sources import (
    ProblemsFile,
    Revision,
    Row,
    digest,
    field_of,
    hub_rows,
    local_rows,
    optional,
    problem_record,
    read_each,
    render,
    text_of,
    texts_of,
    write_counted,
)
from cobalt.episode import PromptSet, load_prompts
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.run import OptionalInput, Outcome, problems_made, stage, whole
from cobalt.stage.tally import Tally, first_malformed

DATA_SET = "google-research-datasets/mbpp"
CONFIG = "full"
SPLITS: Mapping[str, range] = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
"""Task ids of each split."""
EXAMPLES = (2, 3, 4)
"""Task ids of the three-shot prompt."""

OTHER_SPLIT = "another split"


@pydantic.dataclasses.dataclass(frozen=True)
class MbppSettings:
    """Turn MBPP into problems whose tests are its assertions; runs no program and needs no service."""

    output_file: ProblemsFile
    input_file: OptionalInput = None
    """Local mbpp.jsonl of the release, or Parquet with its fields; default: the data set by its name."""
    revision: Revision = "main"
    split: Literal["test", "validation", "train", "prompt", "all"] = "test"
    """Tasks to keep: test (11 to 510), validation (511 to 600), train (601 to 974), prompt (1 to 10) or all."""
    shots: Literal[0, 3] = 0
    """Solved tasks before the task in the field `instruction`: none, or the tasks 2, 3 and 4 as in the original."""
    solutions: bool = False
    """Add each task's own program as `human_solutions`, which preproc_judged.py takes for accepted."""
    prompts: str = "paper"
    """Prompt set of the field `instruction` without solved tasks: paper, pocket, program, or a folder."""


class Task(NamedTuple):
    """A row, read; `tests` are its assertions, and `suite` is made of them."""

    id: int
    text: str
    tests: list[str]
    code: str
    suite: TestSuite


@stage
def mbpp(settings: MbppSettings) -> Outcome:
    """Write the problems of a split in the order of their ids, and count them.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    arguments = {
        "stage": "mbpp",
        "source": "file" if settings.input_file else f"{DATA_SET}@{settings.revision}",
        "split": settings.split,
        "shots": settings.shots,
        "challenge_tests": False,  # the rule in the words of the manifests: test_list alone
        **({"solutions": True} if settings.solutions else {}),
        "prompts": prompts.digests,
        "texts": {name: digest(name) for name in ("question_with_tests", "three_shot")},
    }
    tally = Tally()
    with whole(settings.output_file, arguments, [settings.input_file] if settings.input_file else []) as result:
        write_counted(result, _problems(settings, prompts, tally), tally)
    return problems_made(result.summary, "MBPP", settings.output_file, settings.prompts)


def _problems(settings: MbppSettings, prompts: PromptSet, tally: Tally) -> Iterator[dict[str, Any]]:
    """The records of the split; rows are counted."""
    by_name = (row for split in SPLITS for row in hub_rows(DATA_SET, split, settings.revision, CONFIG))
    rows: Iterator[Row] = local_rows(settings.input_file) if settings.input_file else by_name
    tasks = {task.id: task for task in read_each(rows, partial(_read, settings=settings), "task_id", tally)}
    if settings.shots and (missing := set(EXAMPLES) - tasks.keys()):
        why = f"the file has no task {min(missing)}{first_malformed(tally.first)}"
        raise UserError(f"the three-shot prompt needs the tasks {EXAMPLES}: {why}")
    for number, task in sorted(tasks.items()):
        if settings.split not in ("all", split_of(number)):  # an example
            tally.leave_out(OTHER_SPLIT, number)
            continue
        question = render("question_with_tests", text=task.text, tests=task.tests)
        if settings.shots:
            examples = [tasks[one]._replace(code=tasks[one].code.strip()) for one in EXAMPLES]
            instruction = render("three_shot", examples=examples, text=task.text, tests=task.tests)
        else:
            instruction = prompts.first_turn(question, task.suite.fn_name)
        more = {"human_solutions": [task.code]} if settings.solutions else {}
        record = problem_record(f"MBPP/{number}", question, instruction, *[task.suite] * 3, **more)
        yield record | {"task_id": number, "split": split_of(number)}


def _read(row: Mapping[str, Any], settings: MbppSettings) -> Task | str:
    """The task in a row of the split, or an example that is needed; for other rows why they are left out."""
    number = field_of(row, "task_id", int)
    if settings.split not in ("all", split_of(number)) and not (settings.shots and number in EXAMPLES):
        return OTHER_SPLIT
    text = text_of(row, "prompt" if row.get("text") is None and "prompt" in row else "text")
    code, tests = text_of(row, "code"), texts_of(row, "test_list")
    imports = "\n".join(optional(row, "test_imports", texts_of, []))
    suite = assertion_suite(tests, code, optional(row, "test_setup_code", text_of, ""), imports)
    return Task(number, text, tests, code, suite)


def split_of(task: int) -> str:
    """The split of a task id; "other" for an id that the release does not have."""
    return next((name for name, ids in SPLITS.items() if task in ids), "other")
