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
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.datasets.judged_readings import passed_reading
from cobalt.datasets.sources import local_rows
from cobalt.datasets.taco_rules import MIN_TESTS, Candidate, FunctionTests, Rule, easiest_places, read_row
from cobalt.episode import PromptSet, load_prompts
from cobalt.episode.record import decode_passing
from cobalt.judge import Judge
from cobalt.problems.hub import hub_rows
from cobalt.problems.problem import ProblemId, TestSuite
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.errors import tally as in_words
from cobalt.stage.files import check_files
from cobalt.stage.manifest import open_manifest, read_summary, write_summary
from cobalt.stage.progress import track
from cobalt.stage.records import RecordFile, append_whole, encode_record, iterate_records, sort_records
from cobalt.stage.rows import parse_json
from cobalt.stage.tally import FIRST, Summary, Tally, first_malformed, with_first
from cobalt.stage.workers import work_on_all

logger = logging.getLogger(__name__)

DATA_SET = "likaixin/TACO-verified"
OVER_MAX_TESTS = "tests over max_tests"


@dataclass(frozen=True, slots=True)
class TacoSettings:
    """Settings of one preprocessing run; the defaults are the paper's.

    Attributes:
        output_dir: Folder of the results.
        input_file: Local JSONL or Parquet in the data set's schema; None: the data set by name.
        revision: Branch, tag or commit of the data set by name.
        attempts_file: Single-turn result on problems of an earlier run; decides which tests are easiest.
        function_tests: "call": functions are called with typed arguments. "paper": `print(f(*input().split()))`.
        prompts: Prompt set of `instruction`, by name or folder.
        max_tests: Most tests of a problem.
        authors_order: Tests of a problem that has more begin with the shortest inputs, as the authors' script has it.
        max_solutions: Most recorded solutions to judge.
        public_tests: Public tests of a problem.
        dev_size: Problems of the development split.
        seed: Decides the order of solutions and the split.
        concurrency: Rows worked on at a time.
    """

    output_dir: Path
    input_file: Path | None = None
    revision: str = "main"
    attempts_file: Path | None = None
    function_tests: FunctionTests = "call"
    prompts: str = "paper"
    max_tests: int = 20
    max_solutions: int = 16
    public_tests: int = 4
    dev_size: int = 250
    seed: int = 42
    concurrency: int = 4
    authors_order: bool = False

    def __post_init__(self) -> None:
        for name in ("max_solutions", "public_tests", "concurrency"):
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
    def splits(self) -> dict[str, Path]:
        """The file of each split."""
        return {name: self.output_dir / f"{name}.jsonl" for name in ("train", "dev")}


async def preprocess_taco(settings: TacoSettings, judge: Judge) -> Summary:
    """Make the run's files and count what became of the rows; the counts go into the manifests, too.

    Raises:
        UserError: bad input, no network, or results that cannot be written or that other settings made.
        InfrastructureError: the judge failed on some rows; the others are kept, and running again retries those.
    """
    check_files(
        [path for path in (settings.input_file, settings.attempts_file) if path],
        [settings.rows_file, *settings.splits.values()],
    )
    prompts = load_prompts(settings.prompts)
    attempts = read_attempts(settings.attempts_file) if settings.attempts_file else {}
    rows_file = settings.rows_file
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
    with RecordFile(rows_file) as output:
        counts = read_summary(rows_file) if output.done else None
        inputs = [settings.input_file] if settings.input_file else []
        open_manifest(rows_file, arguments, inputs, complete=counts is not None)
        if counts is None:
            if settings.input_file and not output.done:
                await asyncio.to_thread(_check_rows, settings)
            await _judge_rows(settings, judge, output)
            with rows_file.open("rb") as lines:
                number = sum(1 for _ in lines)
            sort_records(rows_file, range(number))
            counts = _count(rows_file)
            write_summary(rows_file, counts)
    return _split(settings, prompts, attempts, counts)


def _check_rows(settings: TacoSettings) -> None:
    """Read the whole input once, so that a damaged file is found before hours of judging and not after them.

    Raises:
        UserError: a line is not a JSON object; it is named.
    """
    for _ in track(_pending(settings, frozenset()), desc="TACO rows checked", unit="row"):
        pass


async def _judge_rows(settings: TacoSettings, judge: Judge, output: RecordFile) -> None:
    """The first stage: append the record of each row that `output` does not hold yet."""
    failures: list[str] = []
    with track(initial=len(output.done), desc="TACO rows", unit="row") as progress:
        pending = _pending(settings, output.done)

        async def work(row: _Pending) -> None:
            number, place, name, found = row
            try:
                record = (
                    {"dropped": found.name} | name if isinstance(found, Rule) else await _record(settings, judge, found)
                )
            except InfrastructureError as error:
                logger.error("%s: the judge failed (%s)", place, error)
                failures.append(place)
            else:
                await append_whole(output, {"id": number} | record)
                progress.update(1)

        await work_on_all(pending, work, settings.concurrency)
    if failures:
        raise InfrastructureError(
            f"the judge failed on {len(failures)} rows (first: {failures[0]}); the others are kept: run the same"
            " command again to retry those"
        )


_Pending = tuple[int, str, dict[str, Any], Candidate | Rule]
"""A row that is still to do: its number, its place for messages, what names it, and what the rules on form say."""


def _pending(settings: TacoSettings, done: frozenset[ProblemId]) -> Iterator[_Pending]:
    """The rows that are still to do."""
    advice = "give a copy of the data set's rows (JSONL, or the Hub's Parquet file of it) by --input_file"
    rows = (
        local_rows(settings.input_file)
        if settings.input_file
        else hub_rows(DATA_SET, "train", settings.revision, advice)
    )
    seen = set()
    for number, (place, row) in enumerate(rows):
        identifier = row.get("id")
        repeated = isinstance(identifier, str | int) and identifier in seen
        if isinstance(identifier, str | int):
            seen.add(identifier)
        if number in done:
            continue
        name = {"source_id": identifier}
        try:
            found = (
                Rule.DUPLICATE
                if repeated
                else read_row(row, settings.function_tests, settings.max_tests, settings.authors_order)
            )
        except UserError as error:
            found, name = Rule.MALFORMED, name | {"message": f"{place}: {error}"}
        yield number, place, name, found


async def _record(settings: TacoSettings, judge: Judge, candidate: Candidate) -> dict[str, Any]:
    """What `rows.jsonl` says of a row besides its number."""
    suite = await _passed_reading(settings, judge, candidate)
    if suite is None:
        return {"dropped": Rule.UNSOLVED.name, "source_id": candidate.id}
    problem = {"id": candidate.id, "difficulty": candidate.difficulty, "question": candidate.question}
    return {"problem": problem | {"test_cases": suite.to_json()}, "tests_left_out": candidate.tests_left_out}


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
    places = _places_of_problems(settings.rows_file) if settings.rows_file.exists() else []
    if not places:
        raise UserError(
            f"no problem is left ({in_words(counts['rows'])}{first_malformed(counts.get(FIRST, {}))}): give other rows"
        )
    if settings.dev_size >= len(places):
        raise UserError(
            f"{len(places)} problems are left ({in_words(counts['rows'])}): --dev_size must be smaller, not"
            f" {settings.dev_size}"
        )
    dev = set(random.Random(settings.seed).sample(range(len(places)), settings.dev_size))
    splits = {"train": [i for i in range(len(places)) if i not in dev], "dev": sorted(dev)}
    arguments = {
        "stage": "taco_split",
        "prompts": prompts.digests,
        "public_tests": settings.public_tests,
        "dev_size": settings.dev_size,
        "seed": settings.seed,
    }
    made_from = [settings.rows_file, *([settings.attempts_file] if settings.attempts_file else [])]
    results = settings.splits
    summaries = [read_summary(result) if result.exists() else None for result in results.values()]
    complete = None not in summaries
    for result in results.values():
        open_manifest(result, arguments, made_from, complete=complete)
    if complete and summaries[0] is not None:
        return summaries[0]
    chosen: Counter[str] = Counter()
    parts = {name: result.with_name(result.name + ".part") for name, result in results.items()}
    try:
        for name, members in splits.items():
            chosen += _write_split(settings, prompts, attempts, [places[i] for i in members], parts[name])
        if settings.attempts_file and not chosen["by recorded attempts"]:
            raise UserError(f"{settings.attempts_file} holds no attempt on any of these problems: give a run on them")
        for name, result in results.items():  # only when both are complete
            parts[name].replace(result)
    except OSError as error:
        raise UserError(f"cannot write into {settings.output_dir}: {error.strerror}") from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    summary = counts | {
        "splits": {name: len(members) for name, members in splits.items()},
        "public tests": {how: chosen[how] for how in ("by recorded attempts", "by length of the input")},
    }
    for result in results.values():
        write_summary(result, summary)
    return summary


def _places_of_problems(rows_file: Path) -> list[int]:
    """The byte positions at which the records of kept problems begin."""
    places = []
    with rows_file.open("rb") as handle:
        place = 0
        for line in handle:
            if "problem" in parse_json(line.decode()):
                places.append(place)
            place += len(line)
    return places


def _write_split(
    settings: TacoSettings, prompts: PromptSet, attempts: Mapping[ProblemId, Attempts], places: list[int], path: Path
) -> Counter[str]:
    """Write the problems at `places` in TACO-Cobalt's schema; counts how their public tests were chosen."""
    chosen: Counter[str] = Counter()
    with settings.rows_file.open("rb") as rows, path.open("wb") as output:
        for place in places:
            rows.seek(place)
            problem = parse_json(rows.readline().decode())["problem"]
            suite = TestSuite.parse(problem["test_cases"])
            known = attempts.get(problem["id"])
            if known is not None and known.digest != _digest(suite):
                raise UserError(
                    f"{settings.attempts_file}: the attempts on {problem['id']!r} are on other tests than the"
                    " problem's: give a run on these problems"
                )
            chosen["by length of the input" if known is None else "by recorded attempts"] += 1
            public = easiest_places(suite, settings.public_tests, known.passes if known else None)
            hidden = [index for index in range(len(suite)) if index not in public]
            record = problem | {
                "instruction": prompts.first_turn(problem["question"], suite.fn_name),
                "public_test_cases": suite.select(public).to_json(),
                "hidden_test_cases": suite.select(hidden).to_json(),
            }
            output.write(encode_record(record))
    return chosen
