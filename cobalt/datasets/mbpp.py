"""Turn MBPP (Austin et al. 2021, arXiv 2108.07732) into problems: 974 tasks with a program and three assertions each.

Each assertion becomes a test (`cobalt.datasets.assertions`). As in the original, the prompt shows the assertions, and
the same assertions decide. Either the release's file is read, or the data set by name, which has the same fields. The
sanitized release is read as well; it has `prompt` for `text`, and `test_imports` for `test_setup_code`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic.dataclasses

from cobalt.datasets.assertions import assertion_suite
from cobalt.datasets.sources import local_rows, text_of, texts_of
from cobalt.datasets.texts import digest, render
from cobalt.episode import PromptSet, load_prompts
from cobalt.problems.hub import Row, hub_rows
from cobalt.stage.errors import UserError
from cobalt.stage.errors import tally as in_words
from cobalt.stage.run import OptionalInput, Outcome, Output, problems_made, stage, whole
from cobalt.stage.tally import REPEATED, Tally, first_malformed, with_first

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

    output_file: Output
    """Problems (JSONL), with their manifest next to them as .run.json."""
    input_file: OptionalInput = None
    """Local mbpp.jsonl of the release, or Parquet with its fields; default: the data set by its name."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    split: Literal["test", "validation", "train", "prompt", "all"] = "test"
    """Tasks to keep: test (11 to 510), validation (511 to 600), train (601 to 974), prompt (1 to 10) or all."""
    shots: Literal[0, 3] = 0
    """Solved tasks before the task in the field `instruction`: none, or the tasks 2, 3 and 4 as in the original."""
    challenge_tests: bool = False
    """Add the assertions of challenge_test_list, which few tasks have, to the hidden tests."""
    prompts: str = "paper"
    """Prompt set of the field `instruction` without solved tasks: paper, pocket, program, or a folder."""


@dataclass(frozen=True, slots=True)
class Example:
    """A task of the three-shot prompt with its program."""

    text: str
    tests: list[str]
    code: str


@stage
def mbpp(settings: MbppSettings) -> Outcome:
    """Write the problems of a split in the order of their ids, and count them.

    A record has the schema's fields, `task_id` and `split`. Its public tests are the assertions that the prompt shows.
    Its hidden tests are the same, and those of `challenge_test_list` if they are asked for.

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
        "prompts": prompts.digests,
        "texts": {name: digest(name) for name in ("question_with_tests", "three_shot")},
    }
    tally = Tally()
    records = list(_problems(settings, prompts, _rows(settings, tally), tally))
    if not records:
        raise UserError(f"no problem is left ({in_words(tally)}{first_malformed(tally.first)})")
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
        identifier = row.get("task_id")
        if not isinstance(identifier, int) or isinstance(identifier, bool):
            tally.malformed(place, UserError("field 'task_id' is missing or not an integer"))
        elif identifier in rows:
            tally.leave_out(REPEATED, identifier)
        else:
            rows[identifier] = place, _in_form_of_full(row)
    return dict(sorted(rows.items()))


def _in_form_of_full(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the sanitized release with the names of the full one: `text` is `prompt` there."""
    return row if row.get("text") is not None or "prompt" not in row else row | {"text": row["prompt"]}


def _problems(
    settings: MbppSettings, prompts: PromptSet, rows: Mapping[int, Row], tally: Tally
) -> Iterator[dict[str, Any]]:
    examples = _examples(rows) if settings.shots else []
    kept = {task: row for task, row in rows.items() if settings.split in ("all", split_of(task))}
    for task in [task for task in rows if task not in kept]:
        tally.leave_out(OTHER_SPLIT, task)
    if not kept and rows:
        raise UserError(f"there is no task of the split {settings.split!r} among {len(rows)} tasks")
    for task, (place, row) in kept.items():
        try:
            record = _problem(row, settings, prompts, examples)
        except UserError as error:
            tally.malformed(place, error, task)
            continue
        yield record | {"task_id": task, "split": split_of(task)}


def split_of(task: int) -> str:
    """The split of a task id; "other" for an id that the release does not have."""
    return next((name for name, ids in SPLITS.items() if task in ids), "other")


def _examples(rows: Mapping[int, Row]) -> list[Example]:
    missing = [task for task in EXAMPLES if task not in rows]
    if missing:
        raise UserError(f"the three-shot prompt needs the tasks {EXAMPLES}: the file has no task {missing[0]}")
    return [_example(*rows[task]) for task in EXAMPLES]


def _example(place: str, row: dict[str, Any]) -> Example:
    try:
        return Example(text_of(row, "text"), texts_of(row, "test_list"), text_of(row, "code").strip())
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


def _has(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None


def _problem(
    row: dict[str, Any], settings: MbppSettings, prompts: PromptSet, examples: list[Example]
) -> dict[str, Any]:
    """The record of a row."""
    text, code, shown = text_of(row, "text"), text_of(row, "code"), texts_of(row, "test_list")
    harder = (
        texts_of(row, "challenge_test_list") if settings.challenge_tests and _has(row, "challenge_test_list") else []
    )
    setup = text_of(row, "test_setup_code") if _has(row, "test_setup_code") else ""
    imports = "\n".join(texts_of(row, "test_imports")) if _has(row, "test_imports") else ""
    every = assertion_suite(shown + harder, code, f"{imports}\n{setup}")
    every = replace(every, outputs=tuple(f"{imports}\n{check}".lstrip() for check in every.outputs))
    question = render("question_with_tests", text=text, tests=shown)
    if settings.shots:
        instruction = render("three_shot", examples=examples, text=text, tests=shown)
    else:
        instruction = prompts.first_turn(question, every.fn_name)
    return {
        "id": f"MBPP/{row['task_id']}",
        "question": question,
        "instruction": instruction,
        "test_cases": every.to_json(),
        "public_test_cases": every.select(range(len(shown))).to_json(),
        "hidden_test_cases": every.to_json(),
    }
