"""Turn TACO-verified into problems: filter, judge the recorded solutions, choose public tests, split.

Cobalt's preprocessing with the authors' rules (`cobalt.datasets.taco_rules`). Two stages, each with its result:

    rows.jsonl                  one record a row of the source: its problem, or the rule that dropped it (slow: judging)
    train.jsonl, dev.jsonl      the problems in the schema of TACO-Cobalt (fast: made from rows.jsonl)

The first stage resumes after a kill; to split again in another way, remove the second stage's files. At most a few rows
are in memory. The step that chose TACO-Cobalt's public tests is not in the authors' repository; `easiest_places` takes
its place.
"""

import asyncio
import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic.dataclasses
import tyro

from cobalt.datasets.judged_readings import passed_reading
from cobalt.datasets.sources import local_rows
from cobalt.datasets.taco_rules import MIN_TESTS, Candidate, FunctionTests, Rule, easiest_places, read_row
from cobalt.episode import PromptSet, load_prompts
from cobalt.episode.record import decode_passing
from cobalt.judge import Judge, judge_or_local, programs_at_a_time
from cobalt.problems.hub import hub_rows
from cobalt.problems.problem import ProblemId, TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.errors import tally as in_words
from cobalt.stage.manifest import write_summary
from cobalt.stage.progress import track
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Each, OptionalFile, OptionalInput, Outcome, finished, quoted, stage, whole
from cobalt.stage.tally import FIRST, Summary, Tally, first_malformed, with_first

DATA_SET = "likaixin/TACO-verified"
OVER_MAX_TESTS = "tests over max_tests"


@pydantic.dataclasses.dataclass(frozen=True)
class TacoSettings:
    """Filter likaixin/TACO-verified by the paper's rules, judge its solutions, choose public tests, and split it.

    Judges in this process and needs no service. Running the same command again resumes.
    """

    output_dir: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("data/taco")
    """Folder for train.jsonl and dev.jsonl, and for rows.jsonl with what became of each row of the source."""
    input_file: OptionalInput = None
    """Local JSONL or Parquet file in the data set's schema; default: the data set by its name, streamed."""
    revision: str = "main"
    """Branch, tag or commit of the data set by its name."""
    attempts_file: OptionalFile = None
    """Single-turn result on the problems of an earlier run; the tests that most of its samples pass become public.
    Default: those with the shortest inputs."""
    function_tests: FunctionTests = "call"
    """How function problems are run: called with typed arguments, or by the paper's print(f(*input().split()))."""
    prompts: str = "paper"
    """Prompt set of the field `instruction`: paper, pocket, program, or a folder."""
    max_tests: int = 20
    """Most tests of a problem: a quarter are those with the shortest inputs, the rest those with the longest."""
    authors_order: bool = False
    """Where a problem has more tests, those with the shortest inputs come first, as in the authors' script; otherwise
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
        for name in ("max_solutions", "public_tests"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: it must be 1 or more")
        if self.dev_size < 0:
            raise UserError(f"dev_size is {self.dev_size}: it must be 0 or more")
        if self.public_tests >= min(self.max_tests, MIN_TESTS):
            raise UserError(
                f"public_tests is {self.public_tests}, max_tests {self.max_tests}: every problem has at least"
                f" {MIN_TESTS} tests, of which some must stay hidden"
            )

    @property
    def rows_file(self) -> Path:
        """What became of each row of the source."""
        return self.output_dir / "rows.jsonl"

    @property
    def splits(self) -> list[Path]:
        """The files of the two splits: for training, and for development."""
        return [self.output_dir / "train.jsonl", self.output_dir / "dev.jsonl"]

    @property
    def results(self) -> list[Path]:
        """All files that the stage writes."""
        return [self.rows_file, *self.splits]


@stage
async def taco(settings: TacoSettings, judge: Judge | None = None) -> Outcome:
    """Make the run's files and count what became of the rows; the counts go into the manifests, too.

    Args:
        settings: What to do.
        judge: Judges recorded solutions; None: a judge in this process.

    Raises:
        UserError: bad input, no network, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    attempts = read_attempts(settings.attempts_file) if settings.attempts_file else {}
    async with judge_or_local(judge) as local:
        rows = await _judge_rows(settings, local)
    if rows.failed:
        return rows
    train = settings.splits[0]
    return Outcome(
        summary=_split(settings, prompts, attempts, rows.summary),
        title=f"TACO: {settings.output_dir}",
        wrote=f"{train} and dev.jsonl",
        next=f"cobalt sample -i {quoted(train)} -o single_turn.jsonl",
    )


async def _judge_rows(settings: TacoSettings, judge: Judge) -> Outcome:
    """The first stage: a record of each row."""
    rows_file = settings.rows_file
    inputs = [settings.input_file] if settings.input_file else []
    arguments = {
        "stage": "taco_rows",
        "source": "file" if settings.input_file else f"{DATA_SET}@{settings.revision}",
        "function_tests": settings.function_tests,
        "max_tests": settings.max_tests,
        "max_solutions": settings.max_solutions,
        "seed": settings.seed,
        "judge": dict(await judge.describe()),
    }
    if settings.authors_order:
        arguments["authors_order"] = True
    with Each(rows_file, arguments, inputs) as result:
        counts = result.summary()
        if counts is None:
            if settings.input_file and not result.done:
                await asyncio.to_thread(_check_rows, settings.input_file)
            failed = await result.make(
                _rows(settings),
                lambda row: row.number,
                partial(_record, settings, judge),
                concurrency=programs_at_a_time(),
                description="TACO",
            )
            if failed:
                return Outcome(failed=failed)
            counts = _count(rows_file)
            write_summary(rows_file, counts)
    return Outcome(summary=counts)


def _check_rows(path: Path) -> None:
    """Read the whole input once, so that a damaged file is found before hours of judging and not after them.

    Raises:
        UserError: a line is not a JSON object; it is named.
    """
    for _ in track(local_rows(path), desc="TACO rows checked", unit="row"):
        pass


class _Row(NamedTuple):
    """A row of the source.

    Attributes:
        number: Its number, from 0.
        place: Where it stands, for messages.
        fields: The row.
        repeated: Whether an earlier row has its id.
    """

    number: int
    place: str
    fields: dict[str, Any]
    repeated: bool


def _rows(settings: TacoSettings) -> Iterator[_Row]:
    advice = "give a copy of the data set's rows (JSONL, or the Hub's Parquet file of it) by --input_file"
    rows = (
        local_rows(settings.input_file)
        if settings.input_file
        else hub_rows(DATA_SET, "train", settings.revision, advice)
    )
    seen = set()
    for number, (place, row) in enumerate(rows):
        identifier = row.get("id")
        yield _Row(number, place, row, isinstance(identifier, str | int) and identifier in seen)
        if isinstance(identifier, str | int):
            seen.add(identifier)


async def _record(settings: TacoSettings, judge: Judge, row: _Row) -> dict[str, Any]:
    """What `rows.jsonl` says of a row."""
    dropped = {"id": row.number, "dropped": Rule.DUPLICATE.name, "source_id": row.fields.get("id")}
    if row.repeated:
        return dropped
    try:
        found = await asyncio.to_thread(
            read_row, row.fields, settings.function_tests, settings.max_tests, settings.authors_order
        )
    except UserError as error:
        return dropped | {"dropped": Rule.MALFORMED.name, "message": f"{row.place}: {error}"}
    if isinstance(found, Rule):
        return dropped | {"dropped": found.name}
    suite = await _passed_reading(settings, judge, found)
    if suite is None:
        return dropped | {"dropped": Rule.UNSOLVED.name}
    problem = {"id": found.id, "difficulty": found.difficulty, "question": found.question}
    return {
        "id": row.number,
        "problem": problem | {"test_cases": suite.to_json()},
        "tests_left_out": found.tests_left_out,
    }


async def _passed_reading(settings: TacoSettings, judge: Judge, candidate: Candidate) -> TestSuite | None:
    """The first reading of the tests that a recorded solution passes; see `passed_reading`."""
    programs = list(candidate.programs)
    random.Random(f"{settings.seed} {candidate.id}").shuffle(programs)
    return await passed_reading(judge, programs[: settings.max_solutions], candidate.readings)


def _count(rows_file: Path) -> Summary:
    """What became of the rows, from the finished first stage."""
    tally = Tally()
    kept = functions = 0
    for record in iterate_records(rows_file):
        if "problem" in record:
            kept += 1
            functions += TestSuite.parse(record["problem"]["test_cases"]).fn_name is not None
            if left_out := record.get("tests_left_out"):  # absent in files of earlier versions, as is source_id
                tally.leave_out(OVER_MAX_TESTS, record["problem"]["id"], left_out)
        else:
            rule = Rule[record["dropped"]]
            named = record["message"] if rule is Rule.MALFORMED else record.get("source_id", record["id"])
            tally.leave_out(rule.value, named)
    rules = {f"dropped: {rule.value}": tally[rule.value] for rule in Rule}
    rows = {"read": kept + sum(rules.values()), **rules, "kept": kept, "of them called functions": functions}
    return with_first({"rows": rows, "tests": {f"left out: {OVER_MAX_TESTS}": tally[OVER_MAX_TESTS]}}, tally)


@dataclass(frozen=True, slots=True)
class Attempts:
    """How a model fared on a problem: how many attempts passed each test of the suite with this digest."""

    digest: str
    passes: tuple[int, ...]


def read_attempts(path: Path) -> dict[ProblemId, Attempts]:
    """Read how many samples of a single-turn result passed each test.

    Raises:
        UserError: the file cannot be read, or a record is not a single-turn record.
    """
    attempts = {}
    for record in iterate_records(path):
        where = f"{path}: record {record['id']!r}"
        try:
            suite = TestSuite.parse(record.get("test_cases"))
        except UserError as error:
            raise UserError(f"{where}: field 'test_cases': {error}") from None
        try:
            passing = decode_passing(record, len(suite))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        passes = tuple(sum(of_samples) for of_samples in zip(*passing, strict=True))
        attempts[record["id"]] = Attempts(_digest(suite), passes)
    return attempts


def _digest(suite: TestSuite) -> str:
    return hashlib.sha256(suite.to_json().encode("utf-8", "surrogatepass")).hexdigest()


def _split(
    settings: TacoSettings, prompts: PromptSet, attempts: Mapping[ProblemId, Attempts], counts: Summary
) -> Summary:
    """The second stage: complete the kept problems and write both splits, in the order of the source."""
    kept = counts["rows"]["kept"]
    if not kept:
        raise UserError(
            f"no problem is left ({in_words(counts['rows'])}{first_malformed(counts.get(FIRST, {}))}): give other rows"
        )
    if settings.dev_size >= kept:
        raise UserError(
            f"{kept} problems are left ({in_words(counts['rows'])}): --dev_size must be smaller, not"
            f" {settings.dev_size}"
        )
    arguments = {
        "stage": "taco_split",
        "prompts": prompts.digests,
        "public_tests": settings.public_tests,
        "dev_size": settings.dev_size,
        "seed": settings.seed,
    }
    inputs = [settings.rows_file, *([settings.attempts_file] if settings.attempts_file else [])]
    summary = finished(settings.splits, arguments, inputs)
    if summary is not None:
        return summary
    dev = set(random.Random(settings.seed).sample(range(kept), settings.dev_size))
    train_file, dev_file = settings.splits
    attempted = 0
    with whole(settings.splits, arguments, inputs) as result:
        problems = (record["problem"] for record in iterate_records(settings.rows_file) if "problem" in record)
        for index, problem in enumerate(problems):
            known = attempts.get(problem["id"])
            attempted += known is not None
            result.write([_completed(settings, prompts, problem, known)], dev_file if index in dev else train_file)
        if settings.attempts_file and not attempted:
            raise UserError(f"{settings.attempts_file} holds no attempt on any of these problems: give a run on them")
        result.summary = counts | {
            "splits": {"train": kept - settings.dev_size, "dev": settings.dev_size},
            "public tests": {"by recorded attempts": attempted, "by length of the input": kept - attempted},
        }
    return result.summary


def _completed(
    settings: TacoSettings, prompts: PromptSet, problem: Mapping[str, Any], attempts: Attempts | None
) -> dict[str, Any]:
    """A problem in TACO-Cobalt's schema."""
    suite = TestSuite.parse(problem["test_cases"])
    if attempts is not None and attempts.digest != _digest(suite):
        raise UserError(
            f"{settings.attempts_file}: the attempts on {problem['id']!r} are on other tests than the problem's:"
            " give a run on these problems"
        )
    public = easiest_places(suite, settings.public_tests, attempts.passes if attempts else None)
    hidden = [index for index in range(len(suite)) if index not in public]
    return dict(problem) | {
        "instruction": prompts.first_turn(problem["question"], suite.fn_name),
        "public_test_cases": suite.select(public).to_json(),
        "hidden_test_cases": suite.select(hidden).to_json(),
    }
