"""Turn TACO-verified into problems: filter, judge the recorded solutions, choose public tests, split.

Cobalt's preprocessing with the authors' rules, with three differences: function problems keep their types, lists in
place of texts may also be lines (`cobalt.datasets.readings`), and capped tests keep their order unless the authors' is
asked for. Two stages, each with its result:

    rows.jsonl                  one record a row of the source: its problem, or the rule that dropped it (slow: judging)
    train.jsonl, dev.jsonl      the problems in the schema of TACO-Cobalt (fast: made from rows.jsonl)

To split again in another way, remove the second stage's files.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pydantic.dataclasses
import tyro

from cobalt.datasets.readings import Task, UnreadableTests, call_readings, passed_reading, text_readings, text_suite
from cobalt.datasets.sources import (
    InstructionPrompts,
    Revision,
    decoded,
    field_of,
    hub_rows,
    judge_each,
    local_rows,
    texts_of,
    with_starter_code,
)
from cobalt.episode import PromptSet, load_prompts
from cobalt.episode.record import decode_results
from cobalt.judge import Judge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import ProblemId, TestSuite, suite_of
from cobalt.stage.errors import UserError, naming
from cobalt.stage.errors import tally as in_words
from cobalt.stage.manifest import open_manifest, read_summary
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Each, OptionalFile, OptionalInput, Outcome, check_ranges, quoted, stage, whole
from cobalt.stage.tally import FIRST, Summary, Tally, first_malformed, with_first

DATA_SET = "likaixin/TACO-verified"
OVER_MAX_TESTS = "tests over max_tests"
MIN_TESTS = 8
MIN_ALPHANUMERICS = 100


class Rule(StrEnum):
    """Reasons why a row is dropped, in the order in which the rules are applied."""

    TYPES = "tests that are not lists of equal length, or hold what they must not"
    FEW_TESTS = "fewer than 8 tests"
    IMAGE = "the statement shows an image"
    SHORT = "fewer than 100 letters and digits in the statement"
    UNSOLVED = "no recorded solution passes"
    DUPLICATE = "an id that an earlier row has"
    MALFORMED = "malformed"


@pydantic.dataclasses.dataclass(frozen=True)
class TacoSettings:
    """Filter likaixin/TACO-verified by the paper's rules, judge its solutions, choose public tests, and split it.

    Judges in this process and needs no service. Running the same command again resumes.
    """

    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("data/taco")
    """Folder for train.jsonl and dev.jsonl, and for rows.jsonl with what became of each row of the source."""
    input_file: OptionalInput = None
    """Local JSONL or Parquet file in the data set's schema; default: the data set by its name, streamed."""
    revision: Revision = "main"
    attempts_file: OptionalFile = None
    """Single-turn result on the problems of an earlier run; the tests that most of its samples pass become public.
    Default: those with the shortest inputs."""
    function_tests: Literal["call", "paper"] = "call"
    """Calls of function problems: with typed arguments, or by the paper's print(f(*input().split()))."""
    prompts: InstructionPrompts = "paper"
    max_tests: int = 20
    """Most tests of a problem: a quarter are those with the shortest inputs, the rest those with the longest."""
    authors_order: bool = False
    """For problems with more tests, put those with the shortest inputs first, as in the authors' script; otherwise
    tests keep the order of the source."""
    max_solutions: int = 16
    """Most recorded solutions of a problem to judge; one must pass every test."""
    public_tests: int = 4
    """Public tests of a problem; the rest are hidden."""
    dev_size: int = 250
    """Problems of the development split."""
    seed: int = 42
    """Seed of the order in which solutions are tried, and of the split."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        for name, least in (("max_solutions", 1), ("public_tests", 1), ("dev_size", 0)):
            check_ranges(self, (name, getattr(self, name) >= least, f"{least} or more"))
        if self.public_tests >= min(self.max_tests, MIN_TESTS):
            raise UserError(
                f"public_tests is {self.public_tests}, max_tests {self.max_tests}: every problem has at least"
                f" {MIN_TESTS} tests, of which some must stay hidden"
            )

    @property
    def results(self) -> list[Path]:
        """Files with what became of each row, and with the splits for training and for development."""
        return [self.output_dir / f"{name}.jsonl" for name in ("rows", "train", "dev")]


@stage
async def taco(settings: TacoSettings, judge: Judge | None = None) -> Outcome:
    """Make the run's files and count what became of the rows; `judge` judges the recorded solutions.

    Raises:
        UserError: bad input, no network, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    attempts = read_attempts(settings.attempts_file) if settings.attempts_file else {}
    rows_file, train_file, _ = settings.results
    async with using_judge(judge) as local:
        arguments = {
            "stage": "taco_rows",
            "source": "file" if settings.input_file else f"{DATA_SET}@{settings.revision}",
            **{name: getattr(settings, name) for name in ("function_tests", "max_tests", "max_solutions", "seed")},
            "judge": dict(await local.describe()),
        }
        if settings.authors_order:
            arguments["authors_order"] = True
        result = Each(rows_file, arguments, [settings.input_file] if settings.input_file else [])
        work = partial(_record, settings, local)
        rows = await judge_each(result, _rows(settings), work, partial(_count, rows_file))
    if rows.failed:
        return rows
    return Outcome(
        summary=_split(settings, prompts, attempts, rows.summary),
        title=f"TACO: {settings.output_dir}",
        wrote=f"{train_file} and dev.jsonl",
        next=f"cobalt sample -i {quoted(train_file)} -o single_turn.jsonl",
    )


class _Row(NamedTuple):
    """A row of the source; `id` is its number from 0."""

    id: int
    position: str
    fields: dict[str, Any]
    repeated: bool


def _rows(settings: TacoSettings) -> Iterator[_Row]:
    if settings.input_file:
        deque(local_rows(settings.input_file), 0)  # a damaged file is named before hours of judging
        rows = local_rows(settings.input_file)
    else:
        rows = hub_rows(DATA_SET, "train", settings.revision)
    first: dict[ProblemId, int] = {}
    for number, (position, row) in enumerate(rows):
        identifier = row.get("id")
        repeated = isinstance(identifier, str | int) and first.setdefault(identifier, number) != number
        yield _Row(number, position, row, repeated)


async def _record(settings: TacoSettings, judge: Judge, row: _Row) -> dict[str, Any]:
    dropped = {"id": row.id, "dropped": Rule.DUPLICATE.name, "source_id": row.fields.get("id")}
    if row.repeated:
        return dropped
    try:
        task = await asyncio.to_thread(read_row, row.fields, settings)
    except UserError as error:
        return dropped | {"dropped": Rule.MALFORMED.name, "message": f"{row.position}: {error}"}
    if isinstance(task, Rule):
        return dropped | {"dropped": task.name}
    programs = list(task.programs)
    random.Random(f"{settings.seed} {task.id}").shuffle(programs)
    suite = await passed_reading(judge, programs[: settings.max_solutions], task.readings)
    if suite is None:
        return dropped | {"dropped": Rule.UNSOLVED.name}
    problem = {"id": task.id, "difficulty": task.difficulty, "question": task.question, "test_cases": suite.to_json()}
    return {"id": row.id, "problem": problem, "tests_left_out": task.tests_left_out}


def _count(rows_file: Path) -> Summary:
    """Count what became of the rows of the finished first stage."""
    tally = Tally()
    for record in iterate_records(rows_file):
        if "problem" in record:
            tally["kept"] += 1
            tally["called"] += TestSuite.parse(record["problem"]["test_cases"]).fn_name is not None
            if left_out := record.get("tests_left_out"):
                tally.leave_out(OVER_MAX_TESTS, record["problem"]["id"], left_out)
        else:
            rule = Rule[record["dropped"]]
            named = record["message"] if rule is Rule.MALFORMED else record.get("source_id", record["id"])
            tally.leave_out(rule.value, named)
    rules = {f"dropped: {rule.value}": tally[rule.value] for rule in Rule}
    count = tally["kept"]
    rows = {"read": count + sum(rules.values()), **rules, "kept": count, "of them called functions": tally["called"]}
    return with_first({"rows": rows, "tests": {f"left out: {OVER_MAX_TESTS}": tally[OVER_MAX_TESTS]}}, tally)


Attempts = tuple[int, tuple[int, ...]]
"""The hash of a problem's tests, and how many attempts of a model passed each of them."""


def read_attempts(path: Path) -> dict[ProblemId, Attempts]:
    """Number of samples of a single-turn result that passed each test; UserError if a record is not single-turn."""
    attempts: dict[ProblemId, Attempts] = {}
    for record in iterate_records(path):
        with naming(f"{path}: record {record['id']!r}"):
            suite = suite_of(record, "test_cases") or TestSuite((), ())
            passing = [result.passing for result in decode_results(record, len(suite))]
        attempts[record["id"]] = hash(suite), tuple(map(sum, zip(*passing, strict=True)))
    return attempts


def _split(
    settings: TacoSettings, prompts: PromptSet, attempts: Mapping[ProblemId, Attempts], counts: Summary
) -> Summary:
    """The second stage: complete the kept problems and write both splits, in the order of the source."""
    count = counts["rows"]["kept"]
    if settings.dev_size >= count:
        raise UserError(
            f"{count} problems are left ({in_words(counts['rows'])}{first_malformed(counts.get(FIRST, {}))}), and"
            f" --dev_size is {settings.dev_size}: give more rows, or a smaller --dev_size"
        )
    arguments = {name: getattr(settings, name) for name in ("public_tests", "dev_size", "seed")}
    arguments |= {"stage": "taco_split", "prompts": prompts.digests}
    rows_file, *splits = settings.results
    inputs = [rows_file, *([settings.attempts_file] if settings.attempts_file else [])]
    if all(path.exists() and read_summary(path) for path in splits):
        for path in (path for path in splits if path.stat().st_size):
            open_manifest(path, arguments, inputs, complete=True)
        return read_summary(splits[0]) or {}
    dev = set(random.Random(settings.seed).sample(range(count), settings.dev_size))
    attempted = 0
    with whole(splits, arguments, inputs) as result:
        problems = (record["problem"] for record in iterate_records(rows_file) if "problem" in record)
        for index, problem in enumerate(problems):
            attempted += problem["id"] in attempts
            record = _completed(settings, prompts, problem, attempts.get(problem["id"]))
            result.write([record], splits[index in dev])
        if settings.attempts_file and not attempted:
            raise UserError(f"{settings.attempts_file} holds no attempt on any of these problems: give a run on them")
        result.summary = counts | {
            "splits": {"train": count - settings.dev_size, "dev": settings.dev_size},
            "public tests": {"by recorded attempts": attempted, "by length of the input": count - attempted},
        }
    return result.summary


def _completed(
    settings: TacoSettings, prompts: PromptSet, problem: Mapping[str, Any], attempts: Attempts | None
) -> dict[str, Any]:
    """A problem in TACO-Cobalt's schema."""
    suite = TestSuite.parse(problem["test_cases"])
    tested, passes = attempts or (hash(suite), None)
    if tested != hash(suite):
        raise UserError(f"{settings.attempts_file}: the attempts on {problem['id']!r} are on other tests than its own")
    public = easiest_indices(suite, settings.public_tests, passes)
    hidden = [index for index in range(len(suite)) if index not in public]
    return dict(problem) | {
        "instruction": prompts.first_turn(problem["question"], suite.fn_name),
        "public_test_cases": suite.select(public).to_json(),
        "hidden_test_cases": suite.select(hidden).to_json(),
    }


def read_row(row: Mapping[str, Any], settings: TacoSettings) -> Task | Rule:
    """The task in a row of the data set, or the first rule on form that drops the row.

    Raises:
        UserError: a field is missing or of a wrong type; it is named.
    """
    identifier = field_of(row, "id", str, int)
    question = field_of(row, "question", str)
    difficulty = row.get("difficulty")
    recorded = decoded(row.get("solutions"))  # in BAAI/TACO the JSON of a list
    solutions = texts_of({"solutions": recorded}, "solutions") if row.get("solutions") is not None else []
    tests = decoded(row.get("input_output"))
    if not isinstance(tests, dict):
        return Rule.TYPES
    inputs, outputs, fn_name = (tests.get(name) for name in ("inputs", "outputs", "fn_name"))
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        return Rule.TYPES
    if len(inputs) < MIN_TESTS:
        return Rule.FEW_TESTS
    call = ""
    try:
        if fn_name and settings.function_tests == "call":
            readings = call_readings(fn_name, inputs, outputs)
        elif fn_name:
            readings = (text_suite(inputs, outputs),)
            owner = "Solution()." if row.get("source") == "leetcode" else ""
            call = f"\nprint({owner}{fn_name}(*input().split()))"  # as in the authors' preproc_taco.py
        else:
            readings = text_readings(inputs, outputs)
    except UnreadableTests:
        return Rule.TYPES
    if "image" in question.lower() or "\n![" in question:
        return Rule.IMAGE
    if sum(map(str.isalnum, question)) < MIN_ALPHANUMERICS:
        return Rule.SHORT
    selected = capped_indices(readings[0].inputs, settings.max_tests, settings.authors_order)
    statement = question.strip()
    if readings[0].fn_name is not None:
        statement = with_starter_code(statement, row.get("starter_code"))
    return Task(
        identifier,
        difficulty if isinstance(difficulty, str) else "UNKNOWN_DIFFICULTY",
        statement,
        tuple(reading.select(selected) for reading in readings),
        tuple(f"{solution.strip()}{call}" for solution in solutions),
        len(inputs) - len(selected),
    )


def capped_indices(inputs: Sequence[str], max_tests: int, authors_order: bool = False) -> list[int]:
    """Indices of tests to keep: all, or the longest inputs and, for a quarter of them, the shortest (paper: 15 and 5).

    Of equally long inputs an earlier one counts as longer. Tests keep their order; in the authors' order capped tests
    begin with the shortest ones, and the longest ones follow, both from long to short.
    """
    if len(inputs) <= max_tests:
        return list(range(len(inputs)))
    longest_first = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    shortest = max_tests // 4
    selected = longest_first[len(inputs) - shortest :] + longest_first[: max_tests - shortest]
    return selected if authors_order else sorted(selected)


def easiest_indices(suite: TestSuite, count: int, passes: Sequence[int] | None) -> list[int]:
    """The tests to make public, in their order.

    Those that the most recorded attempts pass (the paper), and of equally easy ones, or without recorded attempts,
    those with the shortest inputs; the earlier first. `passes` has how many attempts passed each test.
    """

    def rank(index: int) -> tuple[int, int]:
        return (-passes[index] if passes else 0, len(suite.inputs[index]))

    return sorted(sorted(range(len(suite)), key=rank)[:count])
