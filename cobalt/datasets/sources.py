"""Rows of data sets, from files or the Hub, their fields, how converters work on them, and texts around statements.

The texts are templates in `cobalt/datasets/prompts/`. They make a problem's `question`; the prompt set of a run then
makes the first message of it.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from cobalt.episode.prompt_set import templates
from cobalt.judge import programs_at_a_time
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.errors import tally as in_words
from cobalt.stage.manifest import file_digest, write_summary
from cobalt.stage.records import RecordId
from cobalt.stage.rows import decode_json, plain, read_rows
from cobalt.stage.run import WRITTEN, Each, Flag, Outcome, Whole
from cobalt.stage.tally import REPEATED, Summary, Tally, first_malformed, with_first

ProblemsFile = Annotated[
    Path, Flag(None, "-o", text="Problems (JSONL), with their manifest next to them as .run.json."), WRITTEN
]
Revision = Annotated[str, Flag(None, text="Branch, tag or commit of the data set by its name.")]
InstructionPrompts = Annotated[
    str, Flag(None, text="Prompt set of the field `instruction`: paper, pocket, program, or a folder.")
]

_PROMPTS = Path(__file__).parent / "prompts"
_NAMES = {str: "a string", int: "an integer"}


Row = tuple[str, dict[str, Any]]
"""Position of a row, for messages, and the row."""

logger = logging.getLogger(__name__)


class Identified(Protocol):
    """Item that a converter makes of a row."""

    @property
    def id(self) -> RecordId: ...  # noqa: D102 - unique in the data set


Item = TypeVar("Item", bound=Identified)


def local_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, each with where it stands; raises as `read_rows`."""
    for position, row in read_rows(path):
        yield f"{path}, {position}", row


def hub_rows(name: str, split: str, revision: str, config: str | None = None) -> Iterator[Row]:
    """The rows of a split of a data set on the Hub (`owner/name`), or of a folder that `datasets` reads, streamed.

    Without `config` those of its default configuration. Raises UserError if the rows cannot be read, or there is no
    such split.
    """
    with _asking(name):
        import datasets

        rows = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, row in enumerate(rows, 1):
            yield f"{name}, row {number}", plain(row)


def hub_file(name: str, file: str, revision: str) -> Path:
    """A file of a data set on the Hub, downloaded into the Hub's cache; arguments and errors as of `hub_rows`."""
    with _asking(f"{file} of {name}"):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Turn what the Hub and its libraries raise into UserError, and silence their warnings of each attempt."""
    try:
        from datasets.exceptions import DatasetsError
        from httpx import HTTPError
        from pyarrow import ArrowException
    except ImportError:
        raise UserError(f"to read {what}, install `datasets` (scripts/setup.sh --profile cpu)") from None
    logger.info("%s comes from the Hugging Face Hub, or from its cache", what)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield
    except (OSError, HTTPError, DatasetsError, ArrowException, ValueError) as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"cannot read {what} ({first}): give a local copy by --input_file") from None


def read_each(
    rows: Iterable[Row], read: Callable[[Mapping[str, Any]], Item | str], id_field: str, tally: Tally
) -> Iterator[Item]:
    """Items that `read` makes of rows, one for each id; rows that it refuses, or gives a reason for, are counted."""
    seen = set()
    for position, row in rows:
        tally["read"] += 1
        try:
            item = read(row)
        except UserError as error:
            tally.malformed(position, error, row.get(id_field))
            continue
        if isinstance(item, str):
            tally.leave_out(item, row.get(id_field))
        elif item.id in seen:
            tally.leave_out(REPEATED, item.id)
        else:
            seen.add(item.id)
            yield item


async def judge_each(
    result: Each,
    items: Iterable[Item],
    work: Callable[[Item], Awaitable[Mapping[str, Any]]],
    count: Callable[[], Summary],
) -> Outcome:
    """Write the record that `work` makes of each item by judging, and then the counts; a finished result is left."""
    with result:
        summary = result.summary()
        if summary is None:
            failed = await result.make(
                items, lambda item: item.id, work, concurrency=programs_at_a_time(), description=result.path.name
            )
            if failed:
                return Outcome(failed=failed)
            summary = count()
            write_summary(result.path, summary)
    return Outcome(summary=summary)


def write_counted(result: Whole, problems: Iterable[Mapping[str, Any]], tally: Tally) -> None:
    """Write the records of problems and the counts of the tally, which reading the problems fills.

    Raises UserError if no problem is left.
    """
    for problem in problems:
        tally["kept"] += 1
        result.write([problem])
    check_not_empty(tally)
    left_out = {f"left out: {why}": tally[why] for why in tally.first}
    others = {name: number for name, number in tally.items() if name not in tally.first}
    result.summary = with_first({"problems": {"read": others.pop("read"), **left_out, **others}}, tally)


def check_not_empty(tally: Tally) -> None:
    """Raise UserError if no row was kept as a problem; it has the counts, and the first row that cannot be read."""
    if not tally["kept"]:
        raise UserError(f"no problem is left ({in_words(tally)}{first_malformed(tally.first)})")


def problem_record(
    identifier: RecordId, question: str, instruction: str, *suites: TestSuite, **more: object
) -> dict[str, Any]:
    """A problem in TACO-Cobalt's schema; the suites are all tests, and where there are three, public and hidden."""
    names = ("test_cases", "public_test_cases", "hidden_test_cases")
    tests = {name: suite.to_json() for name, suite in zip(names, suites, strict=False)}
    return {"id": identifier, **more, "question": question, "instruction": instruction, **tests}


def field_of(row: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """A field that every row of a data set has, of one of the `kinds` (`str`, `int`).

    Raises UserError, which names the field, if it is missing or of another type.
    """
    value = row.get(name)
    if not isinstance(value, kinds) or isinstance(value, bool):
        wanted = " or ".join(_NAMES[kind] for kind in kinds)
        raise UserError(f"field {name!r} is missing or of a wrong type: it must be {wanted}")
    return value


def text_of(row: Mapping[str, Any], name: str) -> str:
    """A string of a row, with newlines as line ends; raises as `field_of`."""
    return str(field_of(row, name, str)).replace("\r\n", "\n")


def texts_of(row: Mapping[str, Any], name: str) -> list[str]:
    """A list of strings of a row, with newlines as line ends; raises as `field_of`."""
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"field {name!r} is missing or not a list of strings")
    return [item.replace("\r\n", "\n") for item in value]


def optional(row: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any], str], Any], default: Any) -> Any:
    """Value that `read` makes of a field; the default where the field is missing or null."""
    return default if row.get(name) is None else read(row, name)


def decoded(value: object) -> Any:
    """The JSON value of a text; None where the text is empty or not JSON. Any other value as it is."""
    try:
        return decode_json(value) if isinstance(value, str | bytes) else value
    except UserError:
        return None


def render(name: str, **values: Any) -> str:
    """The text of the template `name`, without white space at its ends."""
    return templates(_PROMPTS).get_template(f"{name}.jinja").render(**values).strip()


def with_starter_code(statement: str, starter: object) -> str:
    """The statement of a function problem with the data set's starter code, if it is a text that is not blank."""
    if not isinstance(starter, str) or not starter.strip():
        return statement
    return f"{statement}\n\nStarter code:\n```python\n{starter.strip()}\n```"


def digest(name: str) -> str:
    """SHA-256 of the template, for the manifest of a result."""
    return file_digest(_PROMPTS / f"{name}.jinja")
