"""Groups from programs that are judged already: results of this project, and APPS-like files.

| file | recognised by | programs |
|---|---|---|
| single-turn result | `exec_results` | the responses |
| evaluated multi-turn result | `raw_responses` or `conversations` | the first responses, or those of all turns |
| APPS-like problems | `human_solutions`, `generated_solutions` | accepted ones, and ones with a `result` |

A program of a result is accepted if it passes every test of its problem. Otherwise its status is that of the first test
that it fails, public tests before hidden ones. The programs of several files about the same problems are one pool.
Recorded rewards are those of training by Cobalt, on the pass rate over all tests and the best one in the context.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from cobalt.datasets.offline.contrast import Candidate, plain
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.datasets.sources import optional, texts_of
from cobalt.episode import Message, PromptSet, first_messages, load_prompts, opening_messages
from cobalt.episode.prompt_set import FILES
from cobalt.episode.record import decode_first_turns, decode_results, decode_trajectories
from cobalt.episode.thinking import CLOSE, OPEN
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory, Turn
from cobalt.judge import VerdictKind
from cobalt.problems.problem import Problem, has_tests
from cobalt.reward import RewardSettings, compute_reward
from cobalt.selection.scores import check_evaluated, score_trajectory
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import recorded_arguments
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Outcome, stage, whole

logger = logging.getLogger(__name__)

OWN_PROMPTS = "from the conversations"
"""What a manifest has for the prompts where every file brings its own, so that no prompt set is used."""

_PROBLEM_FIELDS = (
    "id", "difficulty", "question", "instruction", "test_cases", "public_test_cases", "hidden_test_cases", "source",
)  # fmt: skip

# What becomes of a program, besides the counts of the other modules.
UNKNOWN_RESULT = "dropped: the result does not say whether the program is right"
NOT_FINISHED = "dropped: the response was cut off, or the engine failed"
NO_PROGRAM = "dropped: the response has no program"


class Dropped(NamedTuple):
    """A program that cannot be used: why, as a key of the counts, and its number in the record."""

    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A problem's statement, prompt and judged programs; `problem` is None if the record has no tests."""

    statement: str
    messages: Sequence[Message]
    programs: Sequence[Candidate | Dropped]
    problem: Problem | None


@stage
def judged_groups(settings: JudgedSettings) -> Outcome:
    """Make the groups of files of judged programs, and count what became of problems and programs.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    files = dict(zip(settings.input_files, _writer_names(settings.input_files), strict=True))
    firsts = {path: next(iterate_records(path), {}) for path in files}
    if settings.responses != "programs":
        for path, first in firsts.items():
            if first.get("exec_results") is not None and not _has_prompt(first):
                _check_prompts(path, first, settings.prompts, prompts)
    own_prompts = settings.responses != "programs" and all(map(_has_prompt, firsts.values()))
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in ("responses", "rewards_from", "source")}
    if settings.rewards_from == "recorded":
        if settings.require_thinking == "auto":
            settings = replace(settings, require_thinking="true" if _thinks(firsts.values()) else "false")
        arguments["require_thinking"] = settings.require_thinking
    if len(files) > 1:
        arguments["writers"] = list(files.values())
    writer = GroupWriter(settings, settings.source)
    arguments = writer.arguments("judged", OWN_PROMPTS if own_prompts else prompts.digests) | arguments
    with whole(settings.results, arguments, [*files, *settings.evaluation_files]) as result:
        splits = split_problems(settings, _statements(settings.input_files[0]))
        writer.write(result, _problems(settings, prompts, files, splits, writer), splits)
        result.summary = writer.summary()
    return groups_made(result.summary, "Judged programs", settings.output_dir)


def _thinks(firsts: Iterable[Mapping[str, Any]]) -> bool:
    responses = [str(first.get(name)) for first in firsts for name in ("responses", "raw_responses")]
    return any(tag in text for text in responses for tag in (OPEN, CLOSE))


def _check_prompts(path: Path, first: Mapping[str, Any], asked: str, prompts: PromptSet) -> None:
    """Raise if the responses of a single-turn result answer other prompts than the groups have; warn if none is known.

    Of records that have the instruction as it was sent, only the system message is compared.
    """
    recorded = (recorded_arguments(path) or {}).get("prompts")
    names = ("system.jinja",) if first.get("instruction") is not None else FILES
    if recorded is None:
        logger.warning("%s: no manifest beside it says whether its prompts were those of the set %r", path, asked)
    elif not isinstance(recorded, dict) or any(recorded.get(name) != prompts.digests[name] for name in names):
        raise UserError(
            f"{path}: its responses were made with another prompt set than {asked!r}: give that one by --prompts, or"
            " take the programs alone by --responses programs"
        )


def _statements(path: Path) -> dict[str, str]:
    """The statement of each problem by its id, which is a string in groups."""
    statements: dict[str, str] = {}
    for record in iterate_records(path):
        identifier = str(record["id"])
        statement = record.get("instruction") if record.get("question") is None else record["question"]
        if not isinstance(statement, str):
            raise UserError(f"{path}: record {record['id']!r}: field 'question' is missing or not a string")
        if identifier in statements:
            raise UserError(f"{path}: id {identifier} is that of two problems, as a number and as a string: rename one")
        statements[identifier] = statement
    if not statements:
        raise UserError(f"{path}: the file holds no record")
    return statements


def _writer_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its own, with as many folders before it as tell the files apart."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise UserError(f"{', '.join(map(str, paths))}: a file is given twice: name each file once")
    length = 1
    while len({own[-length:] for own in parts}) < len(parts):
        length += 1
    return ["/".join(own[-length:]) for own in parts]


def _problems(
    settings: JudgedSettings, prompts: PromptSet, files: Mapping[Path, str], splits: Mapping[str, str], to: GroupWriter
) -> Iterator[JudgedProblem]:
    """The problems with the programs of all files, which are read side by side, one record of each at a time."""
    for records in zip_longest(*map(iterate_records, files)):
        ids = ["no record" if record is None else f"record {record['id']!r}" for record in records]
        if len(set(ids)) > 1:
            raise UserError(
                f"{', '.join(map(str, files))} have {', '.join(ids)} side by side: give results of one input"
            )
        reads: list[JudgedRecord] = []
        for path, record in zip(files, records, strict=True):
            with naming(f"{path}: record {record['id']!r}"):
                reads.append(_read_judged(record, settings, prompts))
                _check_agreement(reads[0], reads[-1], settings.input_files[0])
        identifier = str(records[0]["id"])
        number = sum(len(read.programs) for read in reads)
        to.problems[READ] += 1
        to.programs[READ] += number
        if identifier not in splits:
            to.problems.leave_out(EVALUATED, identifier)
            to.programs[EVALUATED] += number
            continue
        candidates: list[Candidate] = []
        for name, read in zip(files.values(), reads, strict=True):
            for program in read.programs:
                if isinstance(program, Dropped):
                    to.programs.leave_out(program.reason, f"{identifier}/{program.origin}")
                else:
                    origin = program.origin if len(files) == 1 else f"{name}:{program.origin}"
                    candidates.append(replace(program, origin=origin))
        problem = next((read.problem for read in reads if read.problem is not None), None)
        fields = {} if problem is None else problem.record
        record = {name: fields[name] for name in _PROBLEM_FIELDS if name in fields} or None
        yield JudgedProblem(identifier, reads[0].messages, candidates, record)


def _check_agreement(first: JudgedRecord, other: JudgedRecord, path: Path) -> None:
    """Raise if a record says something else of its problem than that of the first file, which is at `path`."""
    if first.statement != other.statement:
        raise UserError(f"its statement (field 'question') is not that in {path}: give results of one input")
    if first.problem is not None and other.problem is not None and first.problem.tests != other.problem.tests:
        raise UserError(f"its tests (field 'test_cases') are not those in {path}: give results of one input")
    if list(first.messages) != list(other.messages):
        raise UserError(f"its prompt is not that in {path}: give results of one prompt set, or --responses programs")


def _has_prompt(record: Mapping[str, Any]) -> bool:
    """Whether a record brings the prompt that the model saw."""
    return record.get("conversations") is not None


def _read_judged(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The programs of a record, whose kind its fields tell.

    Raises:
        UserError: the record is malformed or not evaluated; the message names the field.
    """
    multi_turn = record.get("raw_responses") is not None or _has_prompt(record)
    if not multi_turn and record.get("exec_results") is None:
        return _read_recorded_programs(record, settings, prompts)
    problem, seen = Problem.parse(record), list[Message]()
    if multi_turn:
        trajectories = decode_trajectories(problem, record)
        check_evaluated(ProblemTrajectories(problem, trajectories))
        seen = trajectories[0].context(0) if trajectories[0].messages else []
        answers = _turns(problem, trajectories, settings)
    else:
        answers = _first_turns(problem, record)
    programs = [_program(answer, settings) for answer in answers]
    if settings.responses == "programs":  # of bare programs the prompt is the set's
        seen = opening_messages(prompts.first_turn(problem.question, problem.tests.fn_name), prompts)
    return JudgedRecord(problem.question, seen or first_messages(problem, prompts), programs, problem)


def _read_recorded_programs(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The right `human_solutions` and the judged `generated_solutions` of APPS and CodeRL."""
    if all(record.get(name) is None for name in ("human_solutions", "generated_solutions")):
        raise UserError("it has neither judged responses nor 'human_solutions' or 'generated_solutions'")
    if settings.rewards_from == "recorded":
        raise UserError("its programs have no recorded pass rates: leave --rewards_from at status")
    solutions: list[Any] = optional(record, "human_solutions", texts_of, [])
    generated = record.get("generated_solutions") or []
    if not isinstance(generated, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("code"), str) for entry in generated
    ):
        raise UserError("field 'generated_solutions' must be a list of objects with a 'code'")
    programs: list[Candidate | Dropped] = []
    for name, entries in (("human_solutions", solutions), ("generated_solutions", generated)):
        for index, entry in enumerate(entries):
            code, status = (entry, Status.ACCEPTED) if isinstance(entry, str) else (entry["code"], _status(entry))
            if status is None:
                programs.append(Dropped(UNKNOWN_RESULT, f"{name}/{index}"))
            else:
                programs.append(Candidate(plain(code), status, settings.rewards.of(status), f"{name}/{index}"))
    problem = Problem.parse(record) if has_tests(record, "test_cases") else None
    statement = str(record.get("question") or record.get("instruction")) if problem is None else problem.question
    fn_name = None if problem is None else problem.tests.fn_name
    return JudgedRecord(statement, opening_messages(prompts.first_turn(statement, fn_name), prompts), programs, problem)


def _status(entry: Mapping[str, Any]) -> Status | None:
    """True: all tests passed; false: a wrong output; -1: an error or a limit; -2: not a program."""
    result = entry.get("result")
    if isinstance(result, bool):
        return Status.ACCEPTED if result else Status.WRONG_ANSWER
    if result == -1:
        timed_out = "timeout" in str(entry.get("error_type")).lower()
        return Status.TIME_LIMIT if timed_out else Status.RUNTIME_ERROR
    return Status.COMPILE_ERROR if result == -2 else None


class _Answer(NamedTuple):
    """A turn that was judged as `kinds`; the pass rates are its own, last, and those of the turns before it."""

    turn: Turn
    origin: str
    kinds: Sequence[VerdictKind]
    rates: Sequence[float]
    context: tuple[Message, ...] = ()


def _first_turns(problem: Problem, record: Mapping[str, Any]) -> Iterator[_Answer]:
    turns = decode_first_turns(record)
    results = decode_results(record, len(problem.tests))
    if turns is None or len(results) != len(turns):
        raise UserError("field 'exec_results' must have one entry for each of 'responses'")
    for sample, (turn, result) in enumerate(zip(turns, results, strict=True)):
        yield _Answer(turn, f"{sample}/0", [verdict.kind for verdict in result.verdicts], [result.pass_rate])


def _turns(problem: Problem, trajectories: Iterable[Trajectory], settings: JudgedSettings) -> Iterator[_Answer]:
    for trajectory in trajectories:
        turns = trajectory.turns[:1] if settings.responses == "as_written" else trajectory.turns
        rates: list[float] = []
        if settings.rewards_from == "recorded":
            tests = len(problem.public_tests) + len(problem.hidden_tests)
            rates = [passed / tests for passed in score_trajectory(trajectory, len(turns)).passed]
        for number, turn in enumerate(turns):
            if turn.hidden_verdicts is None:
                raise UserError("it has no 'hidden_verdicts': run eval_multi_turn.py first")
            public = [] if turn.public_result is None else [verdict.kind for verdict in turn.public_result.verdicts]
            context = _context(trajectory, number) if settings.responses == "turns" else ()
            kinds, origin = [*public, *turn.hidden_verdicts], f"{trajectory.sample}/{number}"
            yield _Answer(turn, origin, kinds, rates[: number + 1], context)


def _context(trajectory: Trajectory, number: int) -> tuple[Message, ...]:
    """The messages between the problem and a turn."""
    if not number:
        return ()
    if not trajectory.messages:
        raise UserError("it has no 'conversations', which hold the contexts of later turns: give a multi-turn result")
    return tuple(trajectory.context(number)[len(trajectory.context(0)) :])


def _program(answer: _Answer, settings: JudgedSettings) -> Candidate | Dropped:
    turn, kinds, rates = answer.turn, answer.kinds, answer.rates
    code = turn.program
    text = None if settings.responses == "programs" else turn.response
    failed = next((kind for kind in kinds if kind is not VerdictKind.PASSED), None)
    # A response that was cut off has no end to learn, but its program is what was judged.
    if turn.error or (text is not None and turn.finish_reason not in (None, "stop")):
        return Dropped(NOT_FINISHED, answer.origin)
    if code is None and text is None:
        return Dropped(NO_PROGRAM, answer.origin)
    if not kinds or failed is VerdictKind.NOT_RUN:
        return Dropped(UNKNOWN_RESULT, answer.origin)
    if failed is None:
        status = Status.ACCEPTED
    else:
        status = Status.TIME_LIMIT if failed is VerdictKind.WALL_LIMIT else Status(failed.value)
    reward = settings.rewards.of(status)
    if settings.rewards_from == "recorded":
        rules = RewardSettings(require_thinking=settings.require_thinking == "true")
        rate = None if code is None else rates[-1]
        reward = compute_reward(turn.response, rate, max(rates[:-1], default=0.0), rules).total
    return Candidate(code or "", status, reward, answer.origin, text, answer.context)
