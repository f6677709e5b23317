"""Python submissions of IBM Project CodeNet, as groups for offline training.

Rows of the metadata say what became of each submission. Each row ends in exactly one count of the run's summary, and so
does each problem. Nothing is run and nothing is judged.
"""

import csv
import hashlib
import io
import re
import warnings
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import pydantic.dataclasses
import tyro

from cobalt.datasets.codenet_files import Sources, read_descriptions, read_sources
from cobalt.datasets.codenet_html import Statement, read_statement
from cobalt.datasets.offline.contrast import Candidate, bare, plain
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.settings import GroupSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.datasets.sources import problem_record
from cobalt.episode import PromptSet, load_prompts, opening_messages
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.manifest import read_summary
from cobalt.stage.run import Outcome, stage, whole
from cobalt.stage.tally import Tally

STATUSES = {
    "Accepted": Status.ACCEPTED,
    "WA: Presentation Error": Status.PRESENTATION_ERROR,
    "Wrong Answer": Status.WRONG_ANSWER,
    "Time Limit Exceeded": Status.TIME_LIMIT,
    "Memory Limit Exceeded": Status.MEMORY_LIMIT,
    "Output Limit Exceeded": Status.OUTPUT_LIMIT,
    "Runtime Error": Status.RUNTIME_ERROR,
    "Compile Error": Status.COMPILE_ERROR,
}
"""CodeNet's statuses of submissions that were judged."""

NOT_JUDGED = frozenset(
    {"Judge Not Available", "Waiting for Judging", "Waiting for Re-judging", "Internal Error", "Judge System Error"}
)
"""CodeNet's statuses of submissions of whose programs nothing is known."""

_COLUMNS = (
    "submission_id", "problem_id", "language", "original_language", "status", "cpu_time", "memory", "code_size",
)  # fmt: skip
_DIGITS = 12  # most of a time, a memory or a size
# "Python" alone may be either, and numbers after "PyPy3" are PyPy's own.
_VERSION = re.compile(r"(?:Python \(|(?:Python|PyPy) ?)([23])")

# What becomes of a problem or of a submission, besides the counts of cobalt.datasets.offline; keys of a run's counts.
NO_PAGE = "dropped: no problem page"
NO_SAMPLE = "dropped: the page shows no sample"
UNJUDGED = "dropped: not judged"
UNKNOWN_STATUS = "dropped: unknown status"
BAD_FIELD = "dropped: a field is empty, negative or not a number"
PYTHON_2 = "dropped: Python 2"
NO_SOURCE = "dropped: no source file"
BAD_SOURCE = "dropped: the source is empty, too large or not UTF-8"
NOT_PYTHON_3 = "dropped: this Python does not compile it"
COMPILES = "dropped: a compile error that this Python compiles"


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class CodeNetSettings(GroupSettings):
    """Make groups of judged programs from IBM Project CodeNet, for offline training.

    Reads the Python 3 submissions and the pages that show a sample. Writes train.jsonl and validation.jsonl with the
    groups, and problems.jsonl with their problems, whose tests are the samples.
    """

    input_paths: Annotated[tuple[Path, ...], tyro.conf.arg(aliases=["-i"])]
    """The data set: a folder, a tar file (.tar, .tar.gz), or several that make it up together. Archives are read as
    streams and not extracted."""


class Submission(NamedTuple):
    """A judged Python submission: its milliseconds, 0 for a compile error, and whether its language names Python 3."""

    id: str
    status: Status
    cpu_time: int
    python_3: bool


@stage
def codenet_groups(settings: CodeNetSettings) -> Outcome:
    """Make the groups of CodeNet's Python submissions, and count what became of problems and submissions.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings or other data made.
    """
    check_files([path for path in settings.input_paths if not path.is_dir()], settings.results)
    prompts = load_prompts(settings.prompts)
    writer = GroupWriter(settings, "codenet")
    arguments = writer.arguments("codenet", prompts.digests)
    # The rules in the words of the manifests.
    arguments |= {"python_2": "drop", "without_samples": "drop", "figures": "keep"}
    arguments["inputs"] = [path.absolute().name for path in settings.input_paths]
    with whole(settings.results, arguments, settings.evaluation_files) as result:
        tables, pages = read_descriptions(settings.input_paths)
        statements = {problem: read_statement(page) for problem, page in sorted(pages.items())}
        splits = split_problems(settings, {name: one.text for name, one in statements.items()})
        digests = [f"{name}\0{text}" for name, text in (*tables.items(), *pages.items())]
        sources = _digested(read_sources(settings.input_paths, _wanted(writer, tables, statements, splits)), digests)
        writer.write(result, _problems(settings, prompts, writer, tables, statements, sources), splits)
        data = hashlib.sha256("\0".join(sorted(digests)).encode()).hexdigest()
        for path in settings.results:  # the data is too large to be read once more for a digest before
            if (read_summary(path) or {}).get("data", data) != data:
                raise UserError(f"{path} was made from other data: name another output folder, or move this one away")
        summary = writer.summary() | {"pages": _pages(statements.values())}
        result.summary = summary | {"data": data}
    return groups_made(summary, "CodeNet", settings.output_dir)


def _pages(statements: Collection[Statement]) -> dict[str, int]:
    return {
        "read": len(statements),
        "with a statement": sum(bool(one.text) for one in statements),
        "with samples": sum(bool(one.samples) for one in statements),
        "with a constraints section": sum(one.has_constraints for one in statements),
    }


def _digested(read: Iterator[tuple[str, Sources]], digests: list[str]) -> Iterator[tuple[str, Sources]]:
    """The sources as they are read, whose digests are added to a list."""
    for problem, sources in read:
        digests += [f"{name}\0{hashlib.sha256(source or b'').hexdigest()}" for name, source in sources.items()]
        yield problem, sources


def _wanted(
    writer: GroupWriter, tables: Mapping[str, str], statements: Mapping[str, Statement], splits: Mapping[str, str]
) -> set[str]:
    """The problems that have a statement; those that are left out are counted."""
    wanted = set()
    for problem, table in sorted(tables.items()):
        writer.problems[READ] += 1
        statement = statements.get(problem)
        if statement is None or not statement.text:
            why = NO_PAGE
        elif not statement.samples:
            why = NO_SAMPLE
        elif problem not in splits:
            why = EVALUATED
        else:
            wanted.add(problem)
            continue
        writer.problems.leave_out(why, problem)
        writer.programs[why] += len(_submissions(problem, table, writer.programs))
    return wanted


def _problems(
    settings: CodeNetSettings,
    prompts: PromptSet,
    writer: GroupWriter,
    tables: Mapping[str, str],
    statements: Mapping[str, Statement],
    read: Iterator[tuple[str, Sources]],
) -> Iterator[JudgedProblem]:
    """The problems whose sources are read, each with its programs; those that are left out are counted."""
    for problem, sources in read:
        submissions = _submissions(problem, tables[problem], writer.programs)
        candidates = _candidates(submissions, sources, settings, writer.programs)
        statement = statements[problem]
        instruction = prompts.first_turn(statement.text)
        inputs, outputs = zip(*statement.samples, strict=True)
        tests = TestSuite(inputs, outputs)
        record = problem_record(problem, statement.text, instruction, tests) | {"source": "codenet"}
        yield JudgedProblem(problem, opening_messages(instruction, prompts), candidates, record)


def _submissions(problem: str, table: str, counts: Tally) -> list[Submission]:
    """The judged Python submissions among a problem's rows; all Python rows, and those left out, are counted."""
    submissions = []
    for row in _python_rows(problem, table):
        counts[READ] += 1
        submission = _submission(row)
        if isinstance(submission, Submission):
            submissions.append(submission)
        else:
            counts.leave_out(submission, row["submission_id"] or problem)
    return submissions


def _candidates(
    submissions: Sequence[Submission], sources: Sources, settings: CodeNetSettings, counts: Tally
) -> list[Candidate]:
    """The programs of a problem's submissions, with their rewards; those left out are counted."""
    rewards = settings.rewards
    times = sorted(one.cpu_time for one in submissions if one.status is Status.ACCEPTED)
    candidates = []
    for one in submissions:
        program = _program(sources.get(one.id) or b"")
        if not program:
            counts.leave_out(BAD_SOURCE if one.id in sources else NO_SOURCE, one.id)
        elif one.status is Status.COMPILE_ERROR and _compiles(program):
            counts.leave_out(COMPILES, one.id)  # it was the error of another Python
        elif one.status is not Status.COMPILE_ERROR and not one.python_3 and not _compiles(program):
            counts.leave_out(NOT_PYTHON_3, one.id)
        else:
            reward = rewards.of(one.status)
            if one.status is Status.ACCEPTED:
                slower = len(times) - bisect_right(times, one.cpu_time)
                reward += rewards.runtime_bonus * slower / len(times)
            candidates.append(bare(program, one.status, reward, one.id))
    return candidates


def _python_rows(problem: str, table: str) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(table), restval="")
    try:
        rows = [row for row in reader if row.get("language") == "Python"]
    except csv.Error as error:
        raise UserError(f"metadata/{problem}.csv is not a CSV file ({error})") from None
    if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
        raise UserError(f"metadata/{problem}.csv lacks {', '.join(missing)}: give the metadata as CodeNet has it")
    return rows


def _submission(row: Mapping[str, str]) -> Submission | str:
    """The submission of a row, or why the row is left out."""
    text = {name: row[name].strip() for name in _COLUMNS}
    if text["status"] in NOT_JUDGED:
        return UNJUDGED
    if text["status"] and text["status"] not in STATUSES:
        return f"{UNKNOWN_STATUS} {text['status']!r}"
    ran = text["status"] != "Compile Error"
    measured = ("cpu_time", "memory", "code_size") if ran else ("code_size",)
    filled = all(text[name] for name in ("submission_id", "problem_id", "original_language", "status"))
    if not filled or not all(text[name].isdecimal() and len(text[name]) <= _DIGITS for name in measured):
        return BAD_FIELD
    named = _VERSION.match(text["original_language"])
    if named and named[1] == "2":
        return PYTHON_2
    time = int(text["cpu_time"]) if ran else 0
    return Submission(text["submission_id"], STATUSES[text["status"]], time, named is not None)


def _program(source: bytes) -> str:
    """The text of a source, without a byte-order mark and with plain line ends; "" if it is not one."""
    try:
        return plain(source.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return ""


def _compiles(program: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of programs, not of ours
            compile(program, "<submission>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return True
