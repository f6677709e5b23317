"""Python submissions of IBM Project CodeNet, as groups for offline training.

Rows of the metadata say what became of each submission. Each row ends in exactly one count of the run's summary, and so
does each problem. Nothing is run and nothing is judged.
"""

import csv
import hashlib
import logging
import re
import tempfile
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import pydantic.dataclasses
import tyro

from cobalt.datasets.codenet_files import CodeNetFiles, Sources, find_files, open_regular, read_sources
from cobalt.datasets.codenet_html import Statement, read_statement
from cobalt.datasets.offline.contrast import Candidate, Refuse, plain
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.settings import GroupSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.episode import PromptSet, load_prompts, opening_messages
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.manifest import read_summary
from cobalt.stage.run import Outcome, stage, whole
from cobalt.stage.tally import Tally

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
_DIGITS = 12
"""Most digits of a time, a memory or a size."""
_LANGUAGE = "Python"
# "Python" alone may be either, and numbers after "PyPy3" are PyPy's own.
_PYTHON_2 = re.compile(r"(Python|PyPy) ?2|Python \(2")
_PYTHON_3 = re.compile(r"(Python|PyPy) ?3|Python \(3")

# What becomes of a problem or of a submission, besides the counts of cobalt.datasets.offline; keys of a run's counts.
NO_PAGE = "dropped: no problem page"
NO_SAMPLE = "dropped: the page shows no sample"
FIGURES = "dropped: the page has figures"
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

    Reads the Python submissions and the problem pages. Writes train.jsonl and validation.jsonl with the groups, and
    problems.jsonl with their problems, whose tests are the samples of the pages.
    """

    input_paths: Annotated[tuple[Path, ...], tyro.conf.arg(aliases=["-i"])]
    """The data set: a folder, a tar file (.tar, .tar.gz), or several that make it up together. Archives are read as
    streams and not extracted."""
    python_2: Literal["drop", "keep"] = "drop"
    """Submissions in Python 2: those that name it as their language, and those that name neither 2 nor 3 and that this
    Python does not compile. With them, compile errors that this Python does compile."""
    without_samples: Literal["drop", "keep"] = "drop"
    """Problems whose page shows no sample: interactive ones, and pages that are cut off or empty."""
    figures: Literal["keep", "drop"] = "keep"
    """Problems whose page has figures, which statements lose."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        super().__post_init__()
        if not self.input_paths:
            raise UserError("no input is named: give the folder or archive of Project CodeNet by --input_paths")


@dataclass(frozen=True, slots=True)
class Submission:
    """A judged Python submission.

    Attributes:
        id: `sNNNNNNNNN`.
        status: What became of it.
        cpu_time: In milliseconds; 0 for a compile error.
        names_python_3: Whether its language is certainly Python 3.
    """

    id: str
    status: Status
    cpu_time: int
    names_python_3: bool


@stage
def codenet_groups(settings: CodeNetSettings) -> Outcome:
    """Make the groups of CodeNet's Python submissions, and count what became of problems and submissions.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings or other data made.
    """
    for path in settings.input_paths:
        try:
            path.stat()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
    check_files([path for path in settings.input_paths if not path.is_dir()], settings.results)
    prompts = load_prompts(settings.prompts)
    writer = GroupWriter(settings, "codenet")
    arguments = writer.arguments("codenet", prompts.digests)
    arguments |= {name: getattr(settings, name) for name in ("python_2", "without_samples", "figures")}
    arguments["inputs"] = [path.absolute().name for path in settings.input_paths]
    run = _Run(settings, prompts, writer)
    with (
        whole(settings.results, arguments, settings.evaluation_files) as result,
        tempfile.TemporaryDirectory(prefix="codenet-") as scratch,
    ):
        files = find_files(settings.input_paths, Path(scratch))
        statements = {name: _statement(page) for name, page in sorted(files.pages.items())}
        splits = split_problems(settings, {name: found.text for name, found in statements.items()})
        problems = _problems(run, files, statements, splits)
        writer.write(result, problems, splits)
        _check_content(run)
        summary = writer.summary() | {"pages": _pages(statements.values())}
        result.summary = summary | {"content": run.hex_content}
    return groups_made(summary, "CodeNet", settings.output_dir)


@dataclass(slots=True)
class _Run:
    """A run, and a digest of the statements, rows and sources that it has read, whatever the order of the problems."""

    settings: CodeNetSettings
    prompts: PromptSet
    counts: GroupWriter
    content: int = 0

    @property
    def hex_content(self) -> str:
        """The digest as the manifest has it."""
        return f"{self.content:064x}"


def _check_content(run: _Run) -> None:
    """Raise if results that are there were made of other data.

    The data is too large to be read once more for a digest, so this is known only when all of it is read.
    """
    for path in run.settings.results:
        before = (read_summary(path) or {}).get("content")
        if before not in (None, run.hex_content):
            raise UserError(f"{path} was made from other data: name another output folder, or move this one away")


def _statement(page: Path) -> Statement:
    try:
        with _open_text(page) as handle:
            return read_statement(handle.read())
    except OSError as error:
        raise UserError(f"cannot read {page}: {error.strerror}") from None


def _open_text(path: Path, newline: str | None = None) -> IO[str]:
    return open(path, encoding="utf-8-sig", errors="replace", newline=newline, opener=open_regular)


def _pages(statements: Iterable[Statement]) -> dict[str, int]:
    """How many problem pages there are, and how many of them have what a statement can have."""
    counts = {"read": 0, "with a statement": 0, "with samples": 0, "with a constraints section": 0, "with figures": 0}
    for statement in statements:
        counts["read"] += 1
        counts["with a statement"] += bool(statement.text)
        counts["with samples"] += bool(statement.samples)
        counts["with a constraints section"] += statement.has_constraints
        counts["with figures"] += bool(statement.figures)
    return counts


def _problems(
    run: _Run, files: CodeNetFiles, statements: Mapping[str, Statement], splits: Mapping[str, str]
) -> Iterator[JudgedProblem]:
    """The problems that have a statement, each with its programs; the others are counted."""
    wanted = []
    for problem, metadata in sorted(files.metadata.items()):
        run.counts.problems[READ] += 1
        why = _why_dropped(run.settings, problem, statements.get(problem), splits)
        if why is None:
            wanted.append(problem)
        else:
            run.counts.problems.leave_out(why, problem)
            judged = _submissions(_python_rows(metadata), run.settings, run.counts.programs)
            run.counts.programs[why] += len(judged)
    for problem, sources in read_sources(files, wanted):
        rows = list(_python_rows(files.metadata[problem]))
        submissions = _submissions(rows, run.settings, run.counts.programs)
        statement = statements[problem]
        run.content ^= _digest(problem, statement, rows, sources)
        instruction = run.prompts.first_turn(statement.text)
        candidates = _candidates(submissions, sources, run.settings, run.counts.programs)
        record = _record(problem, statement, instruction) if statement.samples else None
        refuse = _refusal(submissions) if run.settings.python_2 == "drop" else None
        yield JudgedProblem(problem, opening_messages(instruction, run.prompts), candidates, record, refuse)


def _why_dropped(
    settings: CodeNetSettings, problem: str, statement: Statement | None, splits: Mapping[str, str]
) -> str | None:
    if statement is None or not statement.text:
        return NO_PAGE
    if not statement.samples and settings.without_samples == "drop":
        return NO_SAMPLE
    if statement.figures and settings.figures == "drop":
        return FIGURES
    return None if problem in splits else EVALUATED


def _record(problem: str, statement: Statement, instruction: str) -> dict[str, Any]:
    """The problem as the judge and the rollout scripts read it; its tests are its samples."""
    inputs, outputs = zip(*statement.samples, strict=True)
    tests = TestSuite(inputs, outputs).to_json()
    return {
        "id": problem,
        "question": statement.text,
        "instruction": instruction,
        "test_cases": tests,
        "source": "codenet",
    }


def _submissions(rows: Iterable[Mapping[str, str]], settings: CodeNetSettings, counts: Tally) -> list[Submission]:
    """The judged Python submissions among a problem's rows; all rows, and those that are left out, are counted.

    A field that is empty or negative drops its row. A compile error ran nothing, so its time and memory are not read;
    AtCoder's rows have no accuracy, so it is not read at all.
    """
    found = []
    for row in rows:
        counts[READ] += 1
        submission = _submission(row, settings)
        if isinstance(submission, Submission):
            found.append(submission)
            continue
        counts.leave_out(submission, row.get("submission_id") or row.get("problem_id"))
        if submission.startswith(UNKNOWN_STATUS) and counts[submission] == 1:
            logger.warning("%s: unknown status %r: such submissions are left out", row.get("problem_id"), row["status"])
    return found


def _python_rows(metadata: Path) -> Iterator[dict[str, str]]:
    try:
        with _open_text(metadata, newline="") as handle:
            header = next(csv.reader(handle), [])
            missing = [name for name in _COLUMNS if name not in header]
            if missing:
                raise UserError(
                    f"{metadata}: there is no column {', '.join(missing)}: give the metadata as CodeNet has it"
                )
            # Most rows are of other languages, and telling them takes less than reading them.
            rows = csv.reader(line for line in handle if f",{_LANGUAGE}," in line)
            for row in rows:
                fields = dict(zip(header, row, strict=False))
                if fields.get("language") == _LANGUAGE:
                    yield fields
    except OSError as error:
        raise UserError(f"cannot read {metadata}: {error.strerror}") from None
    except csv.Error as error:
        raise UserError(f"{metadata} is not a CSV file ({error})") from None


def _submission(row: Mapping[str, str], settings: CodeNetSettings) -> Submission | str:
    """The submission of a row, or why the row is left out."""
    text = {name: row.get(name, "").strip() for name in _COLUMNS}
    measured: tuple[str, ...] = ("cpu_time", "memory", "code_size")
    if text["status"] in NOT_JUDGED:
        return UNJUDGED
    if text["status"] and text["status"] not in STATUSES:
        return f"{UNKNOWN_STATUS} {text['status']!r}"
    if text["status"] == "Compile Error":
        measured = ("code_size",)
    if not all(text[name] for name in ("submission_id", "problem_id", "original_language", "status", *measured)):
        return EMPTY_FIELD
    if not all(text[name].isdecimal() and len(text[name]) <= _DIGITS for name in measured):
        return NEGATIVE_FIELD
    if settings.python_2 == "drop" and _PYTHON_2.match(text["original_language"]):
        return PYTHON_2
    time = int(text["cpu_time"]) if "cpu_time" in measured else 0
    names_python_3 = _PYTHON_3.match(text["original_language"]) is not None
    return Submission(text["submission_id"], STATUSES[text["status"]], time, names_python_3)


def _candidates(
    submissions: Sequence[Submission], sources: Sources, settings: CodeNetSettings, counts: Tally
) -> list[Candidate]:
    """The programs of a problem's submissions, with their rewards."""
    times = sorted(one.cpu_time for one in submissions if one.status is Status.ACCEPTED)
    candidates = []
    for one in submissions:
        if one.id not in sources:
            counts.leave_out(NO_SOURCE, one.id)
            continue
        program = _program(sources[one.id])
        if program is None:
            counts.leave_out(BAD_SOURCE, one.id)
            continue
        reward = settings.rewards.of(one.status)
        if one.status is Status.ACCEPTED:
            slower = len(times) - bisect_right(times, one.cpu_time)
            reward += settings.rewards.runtime_bonus * slower / len(times)
        candidates.append(Candidate(program, one.status, reward, one.id))
    return candidates


def _program(source: bytes | None) -> str | None:
    """The text of a source, without a byte-order mark and with plain line ends; None if it is not one."""
    if source is None:
        return None
    try:
        return plain(source.decode("utf-8-sig")) or None
    except UnicodeDecodeError:
        return None


def _refusal(submissions: Sequence[Submission]) -> Refuse:
    """Why a program is left out after all: it may be in Python 2, or its compile error was that of another Python."""
    python_3 = frozenset(one.id for one in submissions if one.names_python_3)

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
