"""Convert LiveCodeBench's code generation problems (`test6.jsonl` of code_generation_lite) to problems for the judge.

Problems of the kind `functional` are judged by calling their function with JSON arguments, those of the kind `stdin` as
whole programs. With `paper_mode` every problem is judged as a whole program and its statement is cut before the
examples, as in the paper, whose numbers depend on that.
"""

import base64
import pickletools
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pydantic.dataclasses
from typing_extensions import TypedDict

from cobalt.datasets.sources import (
    InstructionPrompts,
    ProblemsFile,
    field_of,
    hub_file,
    local_rows,
    read_each,
    with_starter_code,
    write_counted,
)
from cobalt.episode import PromptSet, load_prompts
from cobalt.judge.calling import call_input, canonical_json
from cobalt.judge.prelude import GRADERS
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import checked
from cobalt.stage.rows import decode_json
from cobalt.stage.run import OptionalInput, Outcome, problems_made, stage, whole
from cobalt.stage.tally import Tally

DATA_SET = "livecodebench/code_generation_lite"
FILE = "test6.jsonl"
DECODED_BYTES = 1 << 29
"""Most bytes of one problem's private tests, decompressed; more is taken for an attack."""

# The opcodes of a pickle of one string, in every protocol. None of them imports, calls or builds anything.
_TEXT_OPCODES = frozenset(
    {"PROTO", "FRAME", "STOP", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
    | {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
OUTSIDE, CALLED = "outside the dates", "of them called functions"
_MOST_OPCODES = 16  # Python writes up to five
_COPIED = ("question_id", "question_title", "platform", "contest_id", "contest_date")
_CUTS = ("\nExample 1:\n\n", "\nSample Input 1\n\n")


class _Test(TypedDict):
    input: str
    output: str
    testtype: str


_TESTS = list[_Test]


@pydantic.dataclasses.dataclass(frozen=True)
class LiveCodeBenchSettings:
    """Turn LiveCodeBench's test6.jsonl into problems; functional problems are judged by calling their function."""

    output_file: ProblemsFile = Path("data/lcb_v6.jsonl")
    input_file: OptionalInput = None
    """Local test6.jsonl (or another release in its schema). Default: test6.jsonl in the current folder if it is there,
    otherwise downloaded by name."""
    start_date: date | None = None
    """First day of the contests to keep, such as 2025-01-31."""
    end_date: date | None = None
    """Last day of the contests to keep."""
    paper_mode: bool = False
    """As in the paper: every problem is a program on standard input, its statement cut before the first example."""
    prompts: InstructionPrompts = "paper"

    def __post_init__(self) -> None:
        """Raise UserError if the dates are in the wrong order."""
        if self.start_date and self.end_date and self.start_date > self.end_date:
            raise UserError(f"start_date {self.start_date} is after end_date {self.end_date}: swap the two dates")


@stage
def livecodebench(settings: LiveCodeBenchSettings) -> Outcome:
    """Write the problems of the window in the file's order, and count them; the private tests become the hidden ones.

    Raises:
        UserError: bad input, no network, or a result that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    source = settings.input_file or Path(FILE)
    if settings.input_file is None and not source.is_file():
        source = hub_file(DATA_SET, FILE, "main")
    arguments = {
        "stage": "livecodebench",
        "start_date": settings.start_date and settings.start_date.isoformat(),
        "end_date": settings.end_date and settings.end_date.isoformat(),
        "paper_mode": settings.paper_mode,
        "prompts": prompts.digests,
    }
    tally = Tally()

    def problems() -> Iterator[dict[str, Any]]:
        read = partial(_read, settings=settings, prompts=prompts)
        for problem in read_each(local_rows(source), read, "question_id", tally):
            tally[CALLED] += problem.called
            yield problem.record

    with whole(settings.output_file, arguments, [source]) as result:
        write_counted(result, problems(), tally)
    return problems_made(result.summary, "LiveCodeBench", settings.output_file, settings.prompts)


class _Read(NamedTuple):
    id: str
    record: dict[str, Any]
    called: bool


def _read(row: Mapping[str, Any], settings: LiveCodeBenchSettings, prompts: PromptSet) -> _Read | str:
    """The problem in a row, or why it is left out."""
    text = field_of(row, "contest_date", str)
    try:
        day = datetime.fromisoformat(text).date()
    except ValueError:
        raise UserError(f"field 'contest_date' is {text!r}: it must be an ISO date") from None
    if not (settings.start_date or day) <= day <= (settings.end_date or day):
        return OUTSIDE
    public = _tests(_json(field_of(row, "public_test_cases", str), "public_test_cases"), "public_test_cases")
    hidden = _tests(decode_private_tests(field_of(row, "private_test_cases", str)), "private_test_cases")
    if not hidden:
        raise UserError("field 'private_test_cases' holds no test")
    question = field_of(row, "question_content", str)
    fn_name: str | None = None
    grader: dict[str, Any] = {}
    if settings.paper_mode:  # the statement before its first example (the authors' preproc_lcb_test6.py)
        marks = [mark for mark in _CUTS if mark in question]
        question = (question.partition(marks[0])[0] if marks else question).strip()
    else:
        fn_name = _function(row, public + hidden)
        # As in LiveCodeBench's own grader, which puts a program on standard input into a function.
        grader = {"prelude": GRADERS, "comparison": "lines", "top_level_return": fn_name is None}
        question = with_starter_code(question.strip(), row.get("starter_code") if fn_name else None)
    suites = [replace(_suite(tests, fn_name), **grader) for tests in (public + hidden, public, hidden)]
    identifier = field_of(row, "question_id", str)
    record = {  # in this order since the first version: manifests have digests of the files
        "id": identifier,
        "difficulty": field_of(row, "difficulty", str),
        "question": question,
        "test_cases": suites[0].to_json(),
        "instruction": prompts.first_turn(question, fn_name),
        "public_test_cases": suites[1].to_json(),
        "hidden_test_cases": suites[2].to_json(),
    }
    return _Read(identifier, record | {name: row.get(name) for name in _COPIED}, fn_name is not None)


def decode_private_tests(text: str, limit: int = DECODED_BYTES) -> Any:
    """Private tests from JSON, or from base64 of zlib of a pickled JSON string of at most `limit` bytes.

    The pickle is read opcode by opcode and never unpickled. Text of another form, or a larger one, raises UserError.
    """
    name = "private_test_cases"
    if text.lstrip().startswith("["):
        return _json(text, name)
    unpacker = zlib.decompressobj()
    try:
        pickled = unpacker.decompress(base64.b64decode(text, validate=True), limit + 1)
    except (ValueError, zlib.error):
        raise UserError(f"field {name!r} is neither JSON nor base64 of zlib's format") from None
    if len(pickled) > limit:
        raise UserError(f"field {name!r} unpacks to more than {limit} bytes, which no real problem does")
    return _json(_pickled_text(pickled), name)


def _pickled_text(pickled: bytes) -> str:
    """The one string that a pickle holds."""
    try:
        opcodes = list(islice(pickletools.genops(pickled), _MOST_OPCODES + 1))
    except (ValueError, OverflowError):
        raise UserError("field 'private_test_cases' does not hold a whole pickle") from None
    texts = [argument for _, argument, _ in opcodes if isinstance(argument, str)]
    harmless = len(opcodes) <= _MOST_OPCODES and {opcode.name for opcode, _, _ in opcodes} <= _TEXT_OPCODES
    if not harmless or len(texts) != 1:
        raise UserError(
            "field 'private_test_cases' is a pickle of something else than one text, which could run code when loaded:"
            " do not use this file"
        )
    return texts[0]


def _function(row: Mapping[str, Any], tests: list[_Test]) -> str | None:
    """The function to call, or None for a problem on standard input."""
    kinds = {test["testtype"] for test in tests}
    if kinds == {"stdin"}:
        return None
    if kinds != {"functional"}:
        raise UserError(f"its tests are of the kinds {sorted(kinds)}: they must all be 'stdin' or all 'functional'")
    metadata = _json(field_of(row, "metadata", str), "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise UserError("field 'metadata' names no 'func_name', but the tests are 'functional'")
    return name


def _suite(tests: list[_Test], fn_name: str | None) -> TestSuite:
    inputs, outputs = [test["input"] for test in tests], [test["output"] for test in tests]
    if fn_name is not None:
        lines = [[line for line in stdin.split("\n") if line.strip()] for stdin in inputs]
        inputs = [call_input([_json(line, "input of a functional test") for line in call]) for call in lines]
        outputs = [canonical_json(_json(output, "output of a functional test")) for output in outputs]
    return TestSuite(tuple(inputs), tuple(outputs), fn_name)


def _tests(value: object, name: str) -> list[_Test]:
    with naming(f"field {name!r}"):
        return checked(_TESTS, value)


def _json(text: str, name: str) -> Any:
    with naming(f"field {name!r}"):
        return decode_json(text)
