"""Turn MBPP (Austin et al. 2021, arXiv 2108.07732) into problems: 974 tasks with a program and three assertions each.

Each assertion becomes a test (`cobalt.datasets.assertions`). As in the original, the prompt shows the assertions, and
the same assertions decide. The sanitized release has `prompt` for `text`, and `test_imports` for `test_setup_code`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

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
    none_left,
    optional,
    problem_record,
    render,
    text_of,
    texts_of,
)
from cobalt.episode import PromptSet, load_prompts
from cobalt.stage.errors import UserError, naming
from cobalt.stage.run import OptionalInput, Outcome, problems_made, stage, whole
from cobalt.stage.tally import REPEATED, Tally, with_first

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
    challenge_tests: bool = False
    """Add the assertions of challenge_test_list, which few tasks have, to the hidden tests."""
    solutions: bool = False
    """Add each task's own program as `human_solutions`, which preproc_judged.py takes for accepted."""
    prompts: str = "paper"
    """Prompt set of the field `instruction` without solved tasks: paper, pocket, program, or a folder."""


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
        "challenge_tests": settings.challenge_tests,
        **({"solutions": True} if settings.solutions else {}),
        "prompts": prompts.digests,
        "texts": {name: digest(name) for name in ("question_with_tests", "three_shot")},
    }
    tally = Tally()
    records = list(_problems(settings, prompts, _rows(settings, tally), tally))
    if not records:
        raise none_left(tally, tally.first)
    left_out = {f"left out: {why}": tally[why] for why in tally.first}
    with whole(settings.output_file, arguments, [settings.input_file] if settings.input_file else []) as result:
        result.write(records)
        result.summary = with_first({"problems": {"read": tally["read"], **left_out, "kept": len(records)}}, tally)
    return problems_made(result.summary, "MBPP", settings.output_file)


def _rows(settings: MbppSettings, tally: Tally) -> dict[int, Row]:
    """Every row that has a task id of its own by that id, in the order of the ids; the others are counted."""
    if settings.input_file:
        source: Iterator[Row] = local_rows(settings.input_file)
    else:
        advice = "give a copy of mbpp.jsonl by --input_file"
        source = (row for split in SPLITS for row in hub_rows(DATA_SET, split, settings.revision, advice, CONFIG))
    rows: dict[int, Row] = {}
    for place, row in source:
        tally["read"] += 1
        try:
            identifier = field_of(row, "task_id", int)
        except UserError as error:
            tally.malformed(place, error)
            continue
        if identifier in rows:
            tally.leave_out(REPEATED, identifier)
        elif row.get("text") is None and "prompt" in row:  # the sanitized release's name for `text`
            rows[identifier] = place, row | {"text": row["prompt"]}
        else:
            rows[identifier] = place, row
    return dict(sorted(rows.items()))


def _problems(
    settings: MbppSettings, prompts: PromptSet, rows: Mapping[int, Row], tally: Tally
) -> Iterator[dict[str, Any]]:
    examples = _examples(rows) if settings.shots else []
    for task, (place, row) in rows.items():
        if settings.split not in ("all", split_of(task)):
            tally.leave_out(OTHER_SPLIT, task)
            continue
        try:
            record = _problem(row, settings, prompts, examples)
        except UserError as error:
            tally.malformed(place, error, task)
            continue
        yield record | {"task_id": task, "split": split_of(task)}


def split_of(task: int) -> str:
    """The split of a task id; "other" for an id that the release does not have."""
    return next((name for name, ids in SPLITS.items() if task in ids), "other")


def _examples(rows: Mapping[int, Row]) -> list[dict[str, Any]]:
    """The tasks of the three-shot prompt with their programs."""
    examples = []
    for task in EXAMPLES:
        if task not in rows:
            raise UserError(f"the three-shot prompt needs the tasks {EXAMPLES}: the file has no task {task}")
        place, row = rows[task]
        with naming(place):
            code = text_of(row, "code").strip()
            examples.append({"text": text_of(row, "text"), "tests": texts_of(row, "test_list"), "code": code})
    return examples


def _problem(
    row: dict[str, Any], settings: MbppSettings, prompts: PromptSet, examples: list[dict[str, Any]]
) -> dict[str, Any]:
    """The record of a row."""
    text, code, shown = text_of(row, "text"), text_of(row, "code"), texts_of(row, "test_list")
    harder = optional(row, "challenge_test_list", texts_of, []) if settings.challenge_tests else []
    imports = "\n".join(optional(row, "test_imports", texts_of, []))
    every = assertion_suite(shown + harder, code, optional(row, "test_setup_code", text_of, ""), imports)
    question = render("question_with_tests", text=text, tests=shown)
    if settings.shots:
        instruction = render("three_shot", examples=examples, text=text, tests=shown)
    else:
        instruction = prompts.first_turn(question, every.fn_name)
    public, solutions = every.select(range(len(shown))), {"human_solutions": [code]} if settings.solutions else {}
    return problem_record(f"MBPP/{row['task_id']}", question, instruction, every, public, every, **solutions)
