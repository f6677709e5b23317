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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from cobalt.datasets.offline.contrast import Candidate, bare, plain
from cobalt.datasets.offline.groups import OfflineResponse, Status
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.datasets.sources import optional, texts_of
from cobalt.episode import Message, PromptSet, first_messages, load_prompts, opening_messages
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

OWN_PROMPTS = "from the conversations"
"""Entry of a manifest for the prompts where every file brings its own, so that no prompt set is used."""

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
    messages: list[Message]
    programs: Sequence[Candidate | Dropped]
    problem: Problem | None


@stage
def judged_groups(settings: JudgedSettings) -> Outcome:
    """Make the groups of files of judged programs, and count what became of problems and programs.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    files = settings.input_files
    firsts = [next(iterate_records(path), {}) for path in files]
    if settings.responses != "programs":
        for path, first in zip(files, firsts, strict=True):
            _check_prompts(path, first, settings.prompts, prompts)
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in ("responses", "rewards_from", "source")}
    if settings.rewards_from == "recorded":
        if settings.require_thinking == "auto":
            settings = replace(settings, require_thinking="true" if _thinks(firsts) else "false")
        arguments["require_thinking"] = settings.require_thinking
    writer = GroupWriter(settings, settings.source)
    own_prompts = settings.responses != "programs" and all(map(_has_prompt, firsts))
    arguments |= writer.arguments("judged", OWN_PROMPTS if own_prompts else prompts.digests)
    with whole(settings.results, arguments, [*files, *settings.evaluation_files]) as result:
        splits = split_problems(settings, _statements(files[0]))
        writer.write(result, _problems(settings, prompts, splits, writer), splits)
        result.summary = writer.summary()
    return groups_made(result.summary, "Judged programs", settings.output_dir)


def _thinks(firsts: Iterable[Mapping[str, Any]]) -> bool:
    responses = [str(first.get(name)) for first in firsts for name in ("responses", "raw_responses")]
    return any(tag in text for text in responses for tag in (OPEN, CLOSE))


def _check_prompts(path: Path, first: Mapping[str, Any], asked: str, prompts: PromptSet) -> None:
    """Raise if the responses of a single-turn result answer other prompts than the groups have."""
    own, recorded = dict(prompts.digests), (recorded_arguments(path) or {}).get("prompts")
    if first.get("exec_results") is not None and not _has_prompt(first) and recorded not in (None, own):
        raise UserError(
            f"{path}: its responses were made with another prompt set than {asked!r}: give that one by --prompts, or"
            " take the programs alone by --responses programs"
        )


def _statements(path: Path) -> dict[str, str]:
    """The statement of each problem by its id, which is a string in groups."""
    statements: dict[str, str] = {}
    for record in iterate_records(path):
        statement = record.get("instruction") if record.get("question") is None else record["question"]
        if not isinstance(statement, str):
            raise UserError(f"{path}: record {record['id']!r}: field 'question' is missing or not a string")
        statements[str(record["id"])] = statement
    return statements


def _problems(
    settings: JudgedSettings, prompts: PromptSet, splits: Mapping[str, str], to: GroupWriter
) -> Iterator[JudgedProblem]:
    """The problems with the programs of all files, which are read side by side, one record of each at a time."""
    files = settings.input_files
    for records in zip_longest(*map(iterate_records, files)):
        ids = [None if record is None else record["id"] for record in records]
        if len(set(ids)) > 1:
            raise UserError(f"{', '.join(map(str, files))} have the ids {ids} side by side: give results of one input")
        reads: list[JudgedRecord] = []
        for path, record in zip(files, records, strict=True):
            with naming(f"{path}: record {record['id']!r}"):
                reads.append(_read_judged(record, settings, prompts))
                _check_agreement(reads[0], reads[-1], files[0])
        identifier = str(ids[0])
        number = sum(len(read.programs) for read in reads)
        to.problems[READ] += 1
        to.programs[READ] += number
        if identifier not in splits:
            to.problems.leave_out(EVALUATED, identifier)
            to.programs[EVALUATED] += number
            continue
        candidates: list[Candidate] = []
        for number_of_file, read in enumerate(reads):
            for program in read.programs:
                if isinstance(program, Dropped):
                    to.programs.leave_out(program.reason, f"{identifier}/{program.origin}")
                elif len(files) == 1:
                    candidates.append(program)
                else:
                    response = replace(program.response, origin=f"{number_of_file}:{program.response.origin}")
                    candidates.append(program._replace(response=response))
        problem = next((read.problem for read in reads if read.problem is not None), None)
        fields = {} if problem is None else problem.record
        record = {name: fields[name] for name in _PROBLEM_FIELDS if name in fields} or None
        yield JudgedProblem(identifier, reads[0].messages, candidates, record)


def _check_agreement(first: JudgedRecord, other: JudgedRecord, path: Path) -> None:
    """Raise if a record says something else of its problem than that of the first file, which is at `path`."""
    tests = [read.problem.tests for read in (first, other) if read.problem is not None]
    for what, one, another in (
        ("statement", first.statement, other.statement),
        ("list of tests", tests[:1], tests[-1:]),
        ("prompt", first.messages, other.messages),
    ):
        if one != another:
            raise UserError(f"its {what} is not that in {path}: give results of one input and one prompt set")


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
        programs = list(_programs_of_turns(problem, trajectories, settings))
    else:
        programs = list(_first_programs(problem, record, settings))
    if settings.responses == "programs":  # of bare programs the prompt is the set's
        seen = opening_messages(prompts.first_turn(problem.question, problem.tests.fn_name), prompts)
    return JudgedRecord(problem.question, seen or first_messages(problem, prompts), programs, problem)


def _read_recorded_programs(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The right `human_solutions` and the judged `generated_solutions` of APPS and CodeRL."""
    if all(record.get(name) is None for name in ("human_solutions", "generated_solutions")):
        raise UserError("it has neither judged responses nor 'human_solutions' or 'generated_solutions'")
    if settings.rewards_from == "recorded":
        raise UserError("its programs have no recorded pass rates: leave --rewards_from at status")
    solutions = [{"code": code, "result": True} for code in optional(record, "human_solutions", texts_of, [])]
    generated = record.get("generated_solutions") or []
    if not isinstance(generated, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("code"), str) for entry in generated
    ):
        raise UserError("field 'generated_solutions' must be a list of objects with a 'code'")
    programs: list[Candidate | Dropped] = []
    for name, entries in (("human_solutions", solutions), ("generated_solutions", generated)):
        for index, entry in enumerate(entries):
            status, origin = _status(entry), f"{name}/{index}"
            if status is None:
                programs.append(Dropped(UNKNOWN_RESULT, origin))
            else:
                programs.append(bare(plain(entry["code"]), status, settings.rewards.of(status), origin))
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


def _first_programs(
    problem: Problem, record: Mapping[str, Any], settings: JudgedSettings
) -> Iterator[Candidate | Dropped]:
    turns = decode_first_turns(record)
    results = decode_results(record, len(problem.tests))
    if turns is None or len(results) != len(turns):
        raise UserError("field 'exec_results' must have one entry for each of 'responses'")
    for sample, (turn, result) in enumerate(zip(turns, results, strict=True)):
        kinds = [verdict.kind for verdict in result.verdicts]
        yield _program(turn, f"{sample}/0", kinds, [result.pass_rate], settings)


def _programs_of_turns(
    problem: Problem, trajectories: Iterable[Trajectory], settings: JudgedSettings
) -> Iterator[Candidate | Dropped]:
    for trajectory in trajectories:
        turns = trajectory.turns[:1] if settings.responses == "as_written" else trajectory.turns
        rates: list[float] = []
        if settings.rewards_from == "recorded":
            tests = len(problem.public_tests) + len(problem.hidden_tests)
            rates = [passed / tests for passed in score_trajectory(trajectory, len(turns)).passed]
        context: tuple[Message, ...] = ()
        if settings.responses == "turns" and not trajectory.messages:
            raise UserError(
                "it has no 'conversations', which hold the contexts of later turns: give a multi-turn result"
            )
        for number, turn in enumerate(turns):
            if turn.hidden_verdicts is None:
                raise UserError("it has no 'hidden_verdicts': run eval_multi_turn.py first")
            public = [] if turn.public_result is None else [verdict.kind for verdict in turn.public_result.verdicts]
            kinds, origin = [*public, *turn.hidden_verdicts], f"{trajectory.sample}/{number}"
            if settings.responses == "turns":  # the messages between the problem and the turn
                context = tuple(trajectory.context(number)[len(trajectory.context(0)) :])
            yield _program(turn, origin, kinds, rates[: number + 1], settings, context)


def _program(
    turn: Turn,
    origin: str,
    kinds: Sequence[VerdictKind],
    rates: Sequence[float],
    settings: JudgedSettings,
    context: tuple[Message, ...] = (),
) -> Candidate | Dropped:
    """The program of a turn that was judged as `kinds`; the pass rates are its own, last, and those before it."""
    code, bare_program = turn.program, settings.responses == "programs"
    failed = next((kind for kind in kinds if kind is not VerdictKind.PASSED), None)
    # A response that was cut off has no end to learn, but its program is what was judged.
    if turn.error or (not bare_program and turn.finish_reason not in (None, "stop")):
        return Dropped(NOT_FINISHED, origin)
    if not kinds or failed is VerdictKind.NOT_RUN:
        return Dropped(UNKNOWN_RESULT, origin)
    if failed is None:
        status = Status.ACCEPTED
    else:
        status = Status.TIME_LIMIT if failed is VerdictKind.WALL_LIMIT else Status(failed.value)
    reward = settings.rewards.of(status)
    if bare_program:
        return Dropped(NO_PROGRAM, origin) if code is None else bare(code, status, reward, origin)
    if settings.rewards_from == "recorded":
        rules = RewardSettings(require_thinking=settings.require_thinking == "true")
        rate = None if code is None else rates[-1]
        reward = compute_reward(turn.response, rate, max(rates[:-1], default=0.0), rules).total
    return Candidate(OfflineResponse(turn.response, status, reward, origin, context))
