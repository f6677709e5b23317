"""Python submissions of IBM Project CodeNet, as groups for offline training.

Rows of the metadata say what became of each submission. Each row ends in exactly one count of the run's summary, and so
does each problem. Nothing is run and nothing is judged.
"""

import csv
import hashlib
import io
import logging
import re
import warnings
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import pydantic.dataclasses
import tyro

from cobalt.datasets.codenet_files import Sources, read_descriptions, read_sources
from cobalt.datasets.codenet_html import Statement, read_statement
from cobalt.datasets.offline.contrast import Candidate, Refuse, plain
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

logger = logging.getLogger(__name__)

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
EMPTY_FIELD = "dropped: a field is empty"
NEGATIVE_FIELD = "dropped: a field is negative or not a number"
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
        rows, pages = read_descriptions(settings.input_paths)
        statements = {problem: read_statement(page) for problem, page in sorted(pages.items())}
        splits = split_problems(settings, {name: one.text for name, one in statements.items()})
        reader = _Reader(settings, prompts, writer)
        writer.write(result, reader.problems(rows, statements, splits), splits)
        content = f"{reader.content:064x}"
        for path in settings.results:  # the data is too large to be read once more for a digest before
            if (read_summary(path) or {}).get("content", content) != content:
                raise UserError(f"{path} was made from other data: name another output folder, or move this one away")
        summary = writer.summary() | {"pages": _pages(statements.values())}
        result.summary = summary | {"content": content}
    return groups_made(summary, "CodeNet", settings.output_dir)


def _pages(statements: Collection[Statement]) -> dict[str, int]:
    return {
        "read": len(statements),
        "with a statement": sum(bool(one.text) for one in statements),
        "with samples": sum(bool(one.samples) for one in statements),
        "with a constraints section": sum(one.has_constraints for one in statements),
        "with figures": sum(bool(one.figures) for one in statements),
    }


class _Reader:
    """Reads a data set's problems with their programs, and counts those that are left out.

    Attributes:
        content: A digest of the statements, rows and sources that were read, whatever the order of the problems.
    """

    def __init__(self, settings: CodeNetSettings, prompts: PromptSet, counts: GroupWriter) -> None:
        self.content = 0
        self._settings, self._prompts, self._counts = settings, prompts, counts

    def problems(
        self, tables: Mapping[str, str], statements: Mapping[str, Statement], splits: Mapping[str, str]
    ) -> Iterator[JudgedProblem]:
        """The problems that have a statement, each with its programs."""
        counts, wanted = self._counts, set()
        for problem, table in sorted(tables.items()):
            counts.problems[READ] += 1
            statement = statements.get(problem)
            why = NO_PAGE if statement is None or not statement.text else None if statement.samples else NO_SAMPLE
            why = why or (None if problem in splits else EVALUATED)
            if why is None:
                wanted.add(problem)
            else:
                counts.problems.leave_out(why, problem)
                counts.programs[why] += len(self._submissions(_python_rows(problem, table)))
        for problem, sources in read_sources(self._settings.input_paths, wanted):
            rows = _python_rows(problem, tables[problem])
            submissions = self._submissions(rows)
            statement = statements[problem]
            self.content ^= _digest(problem, statement, rows, sources)
            instruction = self._prompts.first_turn(statement.text)
            candidates = self._candidates(submissions, sources)
            inputs, outputs = zip(*statement.samples, strict=True)
            record = problem_record(problem, statement.text, instruction, TestSuite(inputs, outputs))
            record["source"] = "codenet"
            messages = opening_messages(instruction, self._prompts)
            yield JudgedProblem(problem, messages, candidates, record, _refusal(submissions))

    def _submissions(self, rows: Iterable[Mapping[str, str]]) -> list[Submission]:
        """The judged Python submissions among a problem's rows; all rows, and those that are left out, are counted."""
        counts, submissions = self._counts.programs, []
        for row in rows:
            counts[READ] += 1
            submission = _submission(row)
            if isinstance(submission, Submission):
                submissions.append(submission)
                continue
            counts.leave_out(submission, row.get("submission_id") or row.get("problem_id"))
            if submission.startswith(UNKNOWN_STATUS) and counts[submission] == 1:
                logger.warning("%s: %s: such submissions are left out", row.get("problem_id"), submission)
        return submissions

    def _candidates(self, submissions: Sequence[Submission], sources: Sources) -> list[Candidate]:
        """The programs of a problem's submissions, with their rewards."""
        rewards = self._settings.rewards
        times = sorted(one.cpu_time for one in submissions if one.status is Status.ACCEPTED)
        candidates = []
        for one in submissions:
            program = _program(sources.get(one.id) or b"")
            if not program:
                self._counts.programs.leave_out(BAD_SOURCE if one.id in sources else NO_SOURCE, one.id)
                continue
            reward = rewards.of(one.status)
            if one.status is Status.ACCEPTED:
                slower = len(times) - bisect_right(times, one.cpu_time)
                reward += rewards.runtime_bonus * slower / len(times)
            candidates.append(Candidate(program, one.status, reward, one.id))
        return candidates


def _python_rows(problem: str, table: str) -> list[dict[str, str]]:
    reader = csv.reader(io.StringIO(table))
    try:
        header = next(reader, [])
        missing = [name for name in _COLUMNS if name not in header]
        if missing:
            raise UserError(f"metadata/{problem}.csv lacks {', '.join(missing)}: give the metadata as CodeNet has it")
        rows = [dict(zip(header, row, strict=False)) for row in reader]
    except csv.Error as error:
        raise UserError(f"metadata/{problem}.csv is not a CSV file ({error})") from None
    return [row for row in rows if row.get("language") == "Python"]


def _submission(row: Mapping[str, str]) -> Submission | str:
    """The submission of a row, or why the row is left out."""
    text = {name: row.get(name, "").strip() for name in _COLUMNS}
    if text["status"] in NOT_JUDGED:
        return UNJUDGED
    if text["status"] and text["status"] not in STATUSES:
        return f"{UNKNOWN_STATUS} {text['status']!r}"
    ran = text["status"] != "Compile Error"
    measured = ("cpu_time", "memory", "code_size") if ran else ("code_size",)
    if not all(text[name] for name in ("submission_id", "problem_id", "original_language", "status", *measured)):
        return EMPTY_FIELD
    if not all(text[name].isdecimal() and len(text[name]) <= _DIGITS for name in measured):
        return NEGATIVE_FIELD
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


def _refusal(submissions: Sequence[Submission]) -> Refuse:
    """Why a program is left out after all: it may be in Python 2, or its compile error was that of another Python."""
    python_3 = frozenset(one.id for one in submissions if one.python_3)

    def refuse(candidate: Candidate) -> str | None:
        if candidate.status is Status.COMPILE_ERROR:
            return COMPILES if _compiles(candidate.program) else None
        return None if candidate.origin in python_3 or _compiles(candidate.program) else NOT_PYTHON_3

    return refuse


def _compiles(program: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of programs, not of ours
            compile(program, "<submission>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return True


def _digest(problem: str, statement: Statement, rows: Iterable[Mapping[str, str]], sources: Sources) -> int:
    """A digest of a problem's statement, Python rows and sources."""
    content = hashlib.sha256(f"{problem}\0{statement}".encode())
    for row in rows:
        content.update("\0".join(row.values()).encode())
    for name in sorted(sources):
        content.update(name.encode() + b"\0" + hashlib.sha256(sources[name] or b"").digest())
    return int.from_bytes(content.digest(), "big")
