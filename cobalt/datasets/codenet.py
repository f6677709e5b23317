"""Python submissions of IBM Project CodeNet, as groups for offline training.

The data set is an unpacked folder:

| path | what it holds |
|---|---|
| `metadata/pNNNNN.csv` | the submissions of a problem, one a row |
| `problem_descriptions/pNNNNN.html` | a problem's page |
| `data/pNNNNN/Python/sNNNNNNNNN.py` | a submission's source |

Rows of the metadata say what became of each submission. Each row ends in exactly one count of the run's summary, and so
does each problem. Nothing is run and nothing is judged. The files may come from anybody: links, pipes and devices are
passed over, and so are files that are larger than such files are.
"""

import csv
import hashlib
import io
import os
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import pydantic.dataclasses
import tyro

from cobalt.datasets.codenet_html import Statement, read_statement
from cobalt.datasets.offline.contrast import Candidate, Refuse, plain
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.settings import GroupSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.datasets.sources import problem_record
from cobalt.episode import PromptSet, load_prompts, opening_messages
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary
from cobalt.stage.run import Outcome, stage, whole

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

LARGEST_SOURCE = 1 << 20
"""Bytes. Online judges accept no larger submission."""
LARGEST_TEXT = 1 << 28
"""Bytes of a problem's rows, or of its page."""

_COLUMNS = (
    "submission_id", "problem_id", "language", "original_language", "status", "cpu_time", "memory", "code_size",
)  # fmt: skip
_DIGITS = 12  # most of a time, a memory or a size
_PROBLEM = re.compile(r"p\d{1,20}", re.ASCII)
_SOURCE = re.compile(r"(s\d{1,20})\.\w+", re.ASCII)
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

    input_dir: Annotated[Path, tyro.conf.arg(aliases=["-i"])]
    """The unpacked data set: a folder with metadata, problem_descriptions and data; of data, Python's folders do."""


class Submission(NamedTuple):
    """A judged submission: its milliseconds, 0 for a compile error, and whether its language names Python 3."""

    id: str
    status: Status
    cpu_time: int
    is_python_3: bool


@stage
def codenet_groups(settings: CodeNetSettings) -> Outcome:
    """Make the groups of CodeNet's Python submissions, and count what became of problems and submissions.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings or other data made.
    """
    root = settings.input_dir
    tables = _problem_files(root / "metadata", ".csv")
    if not tables or next(root.glob("data/*/Python"), None) is None:
        raise UserError(
            f"{root}: there is no metadata/pNNNNN.csv, or no data/pNNNNN/Python: unpack both of CodeNet's archives here"
        )
    prompts = load_prompts(settings.prompts)
    writer = GroupWriter(settings, "codenet")
    arguments = writer.arguments("codenet", prompts.digests)
    # The rules in the words of the manifests.
    arguments |= {"python_2": "drop", "without_samples": "drop", "figures": "keep"}
    arguments["inputs"] = [root.absolute().name]
    with whole(settings.results, arguments, settings.evaluation_files) as result:
        files = _problem_files(root / "problem_descriptions", ".html")
        statements = {problem: read_statement(_text(page)) for problem, page in files.items()}
        splits = split_problems(settings, {name: one.text for name, one in statements.items()})
        reader = _Reader(settings, prompts, writer)
        writer.write(result, reader.problems(tables, statements, splits), splits)
        content = f"{reader.content:064x}"
        for path in settings.results:  # the data is too large to be read once more for a digest before
            if (read_summary(path) or {}).get("content", content) != content:
                raise UserError(f"{path} was made from other data: name another output folder, or move this one away")
        read = statements.values()
        pages = {
            "read": len(read),
            "with a statement": sum(bool(one.text) for one in read),
            "with samples": sum(bool(one.samples) for one in read),
            "with a constraints section": sum(one.has_constraints for one in read),
            "with figures": sum(bool(one.figures) for one in read),
        }
        result.summary = writer.summary() | {"pages": pages, "content": content}
    return groups_made(writer.summary() | {"pages": pages}, "CodeNet", settings.output_dir)


class _Reader:
    """Reads a data set's problems with their programs, and counts those that are left out.

    Attributes:
        content: A digest of the statements, rows and sources that were read.
    """

    def __init__(self, settings: CodeNetSettings, prompts: PromptSet, counts: GroupWriter) -> None:
        self.content = 0
        self._settings, self._prompts, self._counts = settings, prompts, counts

    def problems(
        self, tables: Mapping[str, Path], statements: Mapping[str, Statement], splits: Mapping[str, str]
    ) -> Iterator[JudgedProblem]:
        """The problems that have a statement, each with its programs."""
        counts = self._counts
        for problem, table in tables.items():
            counts.problems[READ] += 1
            rows, statement = _python_rows(table), statements.get(problem)
            submissions = self._submissions(rows)
            if statement is None or not statement.samples or problem not in splits:
                why = EVALUATED if statement and statement.samples else NO_SAMPLE
                if statement is None or not statement.text:
                    why = NO_PAGE
                counts.problems.leave_out(why, problem)
                counts.programs[why] += len(submissions)
                continue
            sources = _sources(self._settings.input_dir / "data" / problem / "Python")
            self.content ^= _digest(problem, statement, rows, sources)
            instruction = self._prompts.first_turn(statement.text)
            inputs, outputs = zip(*statement.samples, strict=True)
            record = problem_record(problem, statement.text, instruction, TestSuite(inputs, outputs))
            yield JudgedProblem(
                problem,
                opening_messages(instruction, self._prompts),
                self._candidates(submissions, sources),
                record | {"source": "codenet"},
                _refusal(submissions),
            )

    def _submissions(self, rows: Iterable[Mapping[str, str]]) -> list[Submission]:
        """The judged Python submissions among a problem's rows; all rows, and those that are left out, are counted."""
        counts, submissions = self._counts.programs, []
        for row in rows:
            counts[READ] += 1
            submission = _submission(row)
            if isinstance(submission, Submission):
                submissions.append(submission)
            else:
                counts.leave_out(submission, row.get("submission_id") or row.get("problem_id"))
        return submissions

    def _candidates(self, submissions: Sequence[Submission], sources: Mapping[str, bytes]) -> list[Candidate]:
        """The programs of a problem's submissions, with their rewards."""
        rewards = self._settings.rewards
        times = sorted(one.cpu_time for one in submissions if one.status is Status.ACCEPTED)
        candidates = []
        for one in submissions:
            program = _program(sources.get(one.id, b""))
            if not program:
                self._counts.programs.leave_out(BAD_SOURCE if one.id in sources else NO_SOURCE, one.id)
                continue
            reward = rewards.of(one.status)
            if one.status is Status.ACCEPTED:
                slower = len(times) - bisect_right(times, one.cpu_time)
                reward += rewards.runtime_bonus * slower / len(times)
            candidates.append(Candidate(program, one.status, reward, one.id))
        return candidates


def _problem_files(folder: Path, ending: str) -> dict[str, Path]:
    """The regular files of a folder that are named after problems, by problem, in order."""
    files = _regular_files(folder)
    names = (name.removesuffix(ending) for name in files if name.endswith(ending))
    return {name: folder / f"{name}{ending}" for name in sorted(names) if _PROBLEM.fullmatch(name)}


def _sources(folder: Path) -> dict[str, bytes]:
    """The sources of a problem by submission; of a file over `LARGEST_SOURCE` nothing."""
    matches = [match for name in _regular_files(folder) if (match := _SOURCE.fullmatch(name))]
    return {match[1]: _read(folder / match[0], LARGEST_SOURCE) or b"" for match in matches}


def _regular_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def _read(path: Path, most: int) -> bytes | None:
    """The bytes of a file; None: it has more than `most`."""
    try:
        return path.read_bytes() if path.stat().st_size <= most else None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _text(path: Path) -> str:
    """The text of a file, with newlines as line ends."""
    content = _read(path, LARGEST_TEXT)
    if content is None:
        raise UserError(f"{path} has more than {LARGEST_TEXT} bytes, as no file of CodeNet has")
    return content.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")


def _python_rows(path: Path) -> list[dict[str, str]]:
    reader = csv.reader(io.StringIO(_text(path)))
    try:
        header = next(reader, [])
        if missing := [name for name in _COLUMNS if name not in header]:
            raise UserError(f"{path} lacks {', '.join(missing)}: give the metadata as CodeNet has it")
        rows = (dict(zip(header, row, strict=False)) for row in reader)
        return [row for row in rows if row.get("language") == "Python"]
    except csv.Error as error:
        raise UserError(f"{path} is not a CSV file ({error})") from None


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
    version = _VERSION.match(text["original_language"])
    if version and version[1] == "2":
        return PYTHON_2
    time = int(text["cpu_time"]) if ran else 0
    return Submission(text["submission_id"], STATUSES[text["status"]], time, version is not None)


def _program(source: bytes) -> str:
    """The text of a source, without a byte-order mark and with plain line ends; "" if it is not one."""
    try:
        return plain(source.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return ""


def _refusal(submissions: Sequence[Submission]) -> Refuse:
    """Why a program is left out after all: it may be in Python 2, or its compile error was that of another Python."""
    python_3 = frozenset(one.id for one in submissions if one.is_python_3)

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


def _digest(problem: str, statement: Statement, rows: Iterable[Mapping[str, str]], sources: Mapping[str, bytes]) -> int:
    """A digest of a problem's statement, Python rows and sources."""
    content = hashlib.sha256(f"{problem}\0{statement}".encode())
    for row in rows:
        content.update("\0".join(row.values()).encode())
    for name in sorted(sources):
        content.update(name.encode() + b"\0" + hashlib.sha256(sources[name]).digest())
    return int.from_bytes(content.digest(), "big")
