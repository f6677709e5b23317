"""Groups from programs that are judged already: results of this project, and APPS-like files.

| file | recognised by | programs |
|---|---|---|
| single-turn result | `exec_results` | the responses |
| evaluated multi-turn result | `raw_responses` or `conversations` | the first responses, or the programs of all turns |
| APPS-like problems | `human_solutions`, `generated_solutions` | accepted ones, and ones with a `result` |

A program of a result is accepted if it passes every test of its problem. Otherwise its status is that of the first test
that it fails, public tests before hidden ones. A `result` is true (all tests passed), false (a wrong output), -1 (an
error while it ran, or too slow) or -2 (not a program), as CodeRL records it. The programs of several files about the
same problems are one pool. Nothing is judged here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobalt.conversation import Message, PromptSet, first_messages, load_prompts, opening_messages
from cobalt.datasets.offline.contrast import Candidate
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.datasets.offline.writers import read_together, writer_names
from cobalt.datasets.offline.writing import (
    EVALUATED,
    READ,
    Counts,
    JudgedProblem,
    Summary,
    close_results,
    open_results,
    split_problems,
    write_groups,
)
from cobalt.errors import UserError
from cobalt.files import check_files
from cobalt.judge import ExecResult, VerdictKind
from cobalt.manifest import manifest_path
from cobalt.offline_groups import Status
from cobalt.problem import Problem, TestSuite, decode_json
from cobalt.records import iterate_records
from cobalt.trajectory import Turn
from cobalt.trajectory_codec import decode_first_turns, decode_trajectories, recorded_public_tests

_STATUSES = {
    VerdictKind.WRONG_ANSWER: Status.WRONG_ANSWER,
    VerdictKind.RUNTIME_ERROR: Status.RUNTIME_ERROR,
    VerdictKind.COMPILE_ERROR: Status.COMPILE_ERROR,
    VerdictKind.TIME_LIMIT: Status.TIME_LIMIT,
    VerdictKind.WALL_LIMIT: Status.TIME_LIMIT,
    VerdictKind.MEMORY_LIMIT: Status.MEMORY_LIMIT,
    VerdictKind.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
    VerdictKind.NO_CODE: Status.NO_CODE,
}

# What becomes of a program, besides the counts of the other modules.
UNKNOWN_RESULT = "dropped: the result does not say whether the program is right"
NOT_FINISHED = "dropped: the response was cut off, or the engine failed"
NO_PROGRAM = "dropped: the response has no program"


def convert_judged(settings: JudgedSettings) -> Summary:
    """Make the groups of files of judged programs, and count what became of problems and programs.

    The files are read twice, one record of each at a time: for the statements, and for the programs.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    check_files(settings.input_files, [])
    writers = writer_names(settings.input_files)
    for path in settings.input_files:
        _check_prompts(path, settings, prompts)
    arguments: dict[str, Any] = {"responses": settings.responses, "source": settings.source}
    if len(writers) > 1:
        arguments["writers"] = writers
    counter = open_results(settings, "judged", settings.input_files, prompts, arguments)
    splits = split_problems(settings, _statements(settings.input_files))
    counts = Counts()
    problems = _problems(settings, prompts, writers, splits, counts)
    write_groups(settings, settings.source, problems, splits, counter, counts)
    return close_results(settings, counts)


def _check_prompts(path: Path, settings: JudgedSettings, prompts: PromptSet) -> None:
    """Raise if the responses of a single-turn result answer other prompts than those that the groups would have."""
    manifest = manifest_path(path)
    if settings.responses == "programs" or not manifest.exists():
        return
    first = next(iterate_records(path), {})
    if _kind(first) != "single_turn" or "instruction" in first:
        return
    found = decode_json(manifest.read_bytes())
    recorded = found.get("arguments", {}).get("prompts") if isinstance(found, dict) else None
    if recorded is not None and recorded != dict(prompts.digests):
        raise UserError(
            f"{path}: its responses were made with another prompt set than {settings.prompts!r}: give"
            " that one by --prompts, or take the programs alone by --responses programs"
        )


def _statements(paths: Sequence[Path]) -> dict[str, str]:
    """The statement of each problem by its id, which is a string in groups; the first file's."""
    statements: dict[str, str] = {}
    for record, *_ in read_together(paths):
        identifier, statement = str(record["id"]), _statement(record)
        if not isinstance(statement, str):
            raise UserError(f"{paths[0]}: record {record['id']!r}: field 'question' is missing or not a string")
        if identifier in statements:
            raise UserError(
                f"{paths[0]}: id {identifier} is that of two problems, as a number and as a string: rename one"
            )
        statements[identifier] = statement
    if not statements:
        raise UserError(f"{paths[0]}: the file holds no record")
    return statements


def _statement(record: Mapping[str, Any]) -> Any:
    return record.get("question", record.get("instruction"))


def _problems(
    settings: JudgedSettings, prompts: PromptSet, writers: Sequence[str], splits: Mapping[str, str], counts: Counts
) -> Iterator[JudgedProblem]:
    for records in read_together(settings.input_files):
        reads = []
        for path, record in zip(settings.input_files, records, strict=True):
            try:
                reads.append(_READERS[_kind(record)](record, settings, prompts))
                _check_agreement(reads[0], reads[-1], settings.input_files[0])
            except UserError as error:
                raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        identifier = str(records[0]["id"])
        number = sum(len(read.programs) for read in reads)
        counts.problems[READ] += 1
        counts.programs[READ] += number
        if identifier not in splits:
            counts.problems[EVALUATED] += 1
            counts.programs[EVALUATED] += number
            continue
        candidates = []
        for writer, read in zip(writers, reads, strict=True):
            for program in read.programs:
                if program.dropped is not None:
                    counts.programs[program.dropped] += 1
                    continue
                reward = settings.rewards.of(program.status)
                origin = program.origin if len(writers) == 1 else f"{writer}:{program.origin}"
                candidates.append(Candidate(program.code, program.status, reward, origin, program.text))
        problem = next((read.problem for read in reads if read.problem is not None), None)
        yield JudgedProblem(identifier, reads[0].messages, candidates, problem)


def _check_agreement(first: "_Read", other: "_Read", path: Path) -> None:
    """Raise if a record says something else of its problem than that of the first file, which is at `path`."""
    if first.statement != other.statement:
        raise UserError(f"its statement (field 'question') is not that in {path}: give results of one input")
    if first.tests is not None and other.tests is not None and first.tests != other.tests:
        raise UserError(f"its tests (field 'test_cases') are not those in {path}: give results of one input")
    if list(first.messages) != list(other.messages):
        raise UserError(
            f"its prompt is not that in {path}: give results that were made with one prompt set, or take the programs"
            " alone by --responses programs"
        )


@dataclass(frozen=True, slots=True)
class _Program:
    """A program of a record; `dropped` says why it cannot be used, and then its status means nothing."""

    code: str
    status: Status
    origin: str
    text: str | None = None
    dropped: str | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """What a record holds: statement and tests, the prompt, the programs, and the problem without them."""

    statement: str
    tests: TestSuite | None
    messages: Sequence[Message]
    programs: Sequence[_Program]
    problem: Mapping[str, Any] | None


def _kind(record: Mapping[str, Any]) -> str:
    if "raw_responses" in record or "conversations" in record:
        return "multi_turn"
    return "single_turn" if "exec_results" in record else "apps"


# --- results of this project --------------------------------------------------------------------------------------


def _single_turn(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> _Read:
    problem = Problem.parse(record)
    turns = decode_first_turns(record)
    results = record["exec_results"]
    if turns is None or not isinstance(results, list) or len(results) != len(turns):
        raise UserError("field 'exec_results' must have one entry for each of 'responses'")
    programs = []
    for sample, (turn, result) in enumerate(zip(turns, results, strict=True)):
        if not isinstance(result, Mapping):
            raise UserError("field 'exec_results' holds an entry that is not an execution result")
        verdicts = [verdict.kind for verdict in ExecResult.from_record(result).verdicts]
        programs.append(_of_turn(turn, verdicts, f"{sample}/0", settings))
    return _read(problem, _messages(problem, (), settings, prompts), programs)


def _multi_turn(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> _Read:
    problem = Problem.parse(record)
    if recorded_public_tests(problem) == "perturbed":
        raise UserError(
            "its public tests are perturbed ones, which no program passes: give the run on the benign tests"
        )
    trajectories = decode_trajectories(problem, record)
    programs = []
    for trajectory in trajectories:
        for number, turn in enumerate(trajectory.turns if settings.responses == "programs" else trajectory.turns[:1]):
            if turn.hidden_verdicts is None:
                raise UserError("it has no 'hidden_verdicts': run eval_multi_turn.py first")
            public = [] if turn.public_result is None else [verdict.kind for verdict in turn.public_result.verdicts]
            origin = f"{trajectory.sample}/{number}"
            programs.append(_of_turn(turn, [*public, *turn.hidden_verdicts], origin, settings))
    first = trajectories[0]
    seen = first.context(0) if first.messages else ()
    return _read(problem, _messages(problem, seen, settings, prompts), programs)


def _of_turn(turn: Turn, verdicts: Sequence[VerdictKind], origin: str, settings: JudgedSettings) -> _Program:
    code = turn.program
    text = turn.response if settings.responses == "as_written" else None
    failed = next((kind for kind in verdicts if kind is not VerdictKind.PASSED), None)
    dropped = None
    # A response that was cut off has no end to learn, but its program is what was judged.
    if turn.error or (text is not None and turn.finish_reason not in (None, "stop")):
        dropped = NOT_FINISHED
    elif code is None and text is None:
        dropped = NO_PROGRAM
    elif not verdicts or failed is VerdictKind.NOT_RUN:
        dropped = UNKNOWN_RESULT
    status = Status.ACCEPTED if failed is None else _STATUSES.get(failed, Status.WRONG_ANSWER)
    return _Program(code or "", status, origin, text, dropped)


def _messages(
    problem: Problem, seen: Sequence[Message], settings: JudgedSettings, prompts: PromptSet
) -> Sequence[Message]:
    """The prompt: of a model's responses the one that it saw, if the file has it; of bare programs the prompt set's."""
    if settings.responses == "programs":
        return opening_messages(prompts.first_turn(problem.question, problem.tests.fn_name), prompts)
    return seen or first_messages(problem, prompts)


def _read(problem: Problem, messages: Sequence[Message], programs: Sequence[_Program]) -> _Read:
    without_results = {name: problem.record[name] for name in _PROBLEM_FIELDS if name in problem.record}
    return _Read(problem.question, problem.tests, messages, programs, without_results)


# --- APPS ---------------------------------------------------------------------------------------------------------


def _apps(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> _Read:
    solutions, generated = record.get("human_solutions", []), record.get("generated_solutions", [])
    if "human_solutions" not in record and "generated_solutions" not in record:
        raise UserError("it has neither judged responses nor 'human_solutions' or 'generated_solutions'")
    if not isinstance(solutions, list) or not all(isinstance(code, str) for code in solutions):
        raise UserError("field 'human_solutions' must be a list of programs")
    if not isinstance(generated, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("code"), str) for entry in generated
    ):
        raise UserError("field 'generated_solutions' must be a list of objects with a 'code'")
    programs = [
        _Program(_plain(code), Status.ACCEPTED, f"human_solutions/{place}") for place, code in enumerate(solutions)
    ]
    for place, entry in enumerate(generated):
        status = _apps_status(entry)
        dropped = UNKNOWN_RESULT if status is None else None
        origin = f"generated_solutions/{place}"
        programs.append(_Program(_plain(entry["code"]), status or Status.WRONG_ANSWER, origin, dropped=dropped))
    statement = _statement(record)
    if "test_cases" not in record:
        return _Read(statement, None, opening_messages(prompts.first_turn(statement), prompts), programs, None)
    problem = Problem.parse(record)
    messages = opening_messages(prompts.first_turn(statement, problem.tests.fn_name), prompts)
    return _read(problem, messages, programs)


def _apps_status(entry: Mapping[str, Any]) -> Status | None:
    result = entry.get("result")
    if isinstance(result, bool):
        return Status.ACCEPTED if result else Status.WRONG_ANSWER
    if result == -1:
        timed_out = "timeout" in str(entry.get("error_type")).lower()
        return Status.TIME_LIMIT if timed_out else Status.RUNTIME_ERROR
    return Status.COMPILE_ERROR if result == -2 else None


def _plain(code: str) -> str:
    return code.replace("\r\n", "\n").rstrip()


_PROBLEM_FIELDS = (
    "id", "difficulty", "question", "instruction", "test_cases", "public_test_cases", "hidden_test_cases", "source",
)  # fmt: skip
_READERS: Mapping[str, Callable[[Mapping[str, Any], JudgedSettings, PromptSet], _Read]] = {
    "single_turn": _single_turn,
    "multi_turn": _multi_turn,
    "apps": _apps,
}
