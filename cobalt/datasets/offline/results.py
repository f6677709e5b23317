"""The judged programs of a record: of a single-turn or multi-turn result of this project, or of an APPS-like problem.

A later turn as it was written has a context: the messages between the problem and the response that the model saw.
Recorded rewards are those of training by Cobalt: `cobalt.reward` with its default settings, except for
`require_thinking`, on the pass rate over all tests and the best pass rate of the programs in the context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cobalt.datasets.offline.contrast import Candidate, plain
from cobalt.datasets.offline.groups import Status
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.episode import Message, PromptSet, first_messages, opening_messages
from cobalt.episode.record import (
    axes_are_known,
    decode_first_turns,
    decode_results,
    decode_trajectories,
    recorded_public_tests,
)
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory, Turn
from cobalt.judge import VerdictKind
from cobalt.problems.problem import Problem, has_tests
from cobalt.reward import RewardSettings, compute_reward
from cobalt.selection.scores import score_trajectory
from cobalt.stage.errors import UserError

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


def has_prompt(record: Mapping[str, Any]) -> bool:
    """Whether a record brings the prompt that the model saw."""
    return record.get("conversations") is not None


def read_judged(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The programs of a record, whose kind its fields tell.

    Raises:
        UserError: the record is malformed or not evaluated; the message names the field.
    """
    if record.get("raw_responses") is not None or has_prompt(record):
        return _read_multi_turn(record, settings, prompts)
    if record.get("exec_results") is not None:
        return _read_single_turn(record, settings, prompts)
    return _read_recorded_programs(record, settings, prompts)


def _read_recorded_programs(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The right `human_solutions` and the judged `generated_solutions` of APPS and CodeRL."""
    solutions, generated = record.get("human_solutions"), record.get("generated_solutions")
    if solutions is None and generated is None:
        raise UserError("it has neither judged responses nor 'human_solutions' or 'generated_solutions'")
    if settings.rewards_from == "recorded":
        raise UserError("its programs have no recorded pass rates: leave --rewards_from at status")
    solutions, generated = solutions or [], generated or []
    if not isinstance(solutions, list) or not all(isinstance(code, str) for code in solutions):
        raise UserError("field 'human_solutions' must be a list of programs")
    if not isinstance(generated, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("code"), str) for entry in generated
    ):
        raise UserError("field 'generated_solutions' must be a list of objects with a 'code'")
    codes: list[tuple[str, Status | None, str]]
    codes = [(code, Status.ACCEPTED, f"human_solutions/{index}") for index, code in enumerate(solutions)]
    codes += [(one["code"], _status(one), f"generated_solutions/{index}") for index, one in enumerate(generated)]
    programs = [
        Dropped(UNKNOWN_RESULT, origin)
        if status is None
        else Candidate(plain(code), status, settings.rewards.of(status), origin)
        for code, status, origin in codes
    ]
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


def _read_single_turn(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    problem = Problem.parse(record)
    turns = decode_first_turns(record)
    results = decode_results(record, len(problem.tests))
    if turns is None or len(results) != len(turns):
        raise UserError("field 'exec_results' must have one entry for each of 'responses'")
    programs = []
    for sample, (turn, result) in enumerate(zip(turns, results, strict=True)):
        kinds = [verdict.kind for verdict in result.verdicts]
        programs.append(_program(turn, kinds, f"{sample}/0", settings, [result.pass_rate]))
    return JudgedRecord(problem.question, _prompt(problem, (), settings, prompts), programs, problem)


def _read_multi_turn(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    problem = Problem.parse(record)
    if recorded_public_tests(problem) == "perturbed":
        raise UserError("its public tests are perturbed ones, which no program passes: give the run on benign tests")
    trajectories = decode_trajectories(problem, record)
    if not axes_are_known(ProblemTrajectories(problem, trajectories)):
        raise UserError(
            "it has as many turns as samples, so the axes of its fields cannot be told apart: run the programs again"
            " with run_multi_turn_vllm.py --replay_file, then eval_multi_turn.py"
        )
    seen = trajectories[0].context(0) if trajectories[0].messages else []
    programs = []
    for trajectory in trajectories:
        if trajectory.messages and trajectory.context(0) != seen:
            raise UserError("field 'conversations' holds different prompts of one problem")
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
            kinds = [*public, *turn.hidden_verdicts]
            origin = f"{trajectory.sample}/{number}"
            programs.append(_program(turn, kinds, origin, settings, rates[: number + 1], context))
    return JudgedRecord(problem.question, _prompt(problem, seen, settings, prompts), programs, problem)


def _context(trajectory: Trajectory, number: int) -> tuple[Message, ...]:
    """The messages between the problem and a turn."""
    if not number:
        return ()
    if not trajectory.messages:
        raise UserError("it has no 'conversations', which hold the contexts of later turns: give a multi-turn result")
    return tuple(trajectory.context(number)[len(trajectory.context(0)) :])


def _program(
    turn: Turn,
    kinds: Sequence[VerdictKind],
    origin: str,
    settings: JudgedSettings,
    rates: Sequence[float],
    context: tuple[Message, ...] = (),
) -> Candidate | Dropped:
    """A turn's program, judged as `kinds`; the pass rates are its own, last, and those of the turns before it."""
    code = turn.program
    text = None if settings.responses == "programs" else turn.response
    failed = next((kind for kind in kinds if kind is not VerdictKind.PASSED), None)
    # A response that was cut off has no end to learn, but its program is what was judged.
    if turn.error or (text is not None and turn.finish_reason not in (None, "stop")):
        return Dropped(NOT_FINISHED, origin)
    if code is None and text is None:
        return Dropped(NO_PROGRAM, origin)
    if not kinds or failed is VerdictKind.NOT_RUN:
        return Dropped(UNKNOWN_RESULT, origin)
    if failed is None:
        status = Status.ACCEPTED
    else:
        status = Status.TIME_LIMIT if failed is VerdictKind.WALL_LIMIT else Status(failed.value)
    reward = settings.rewards.of(status)
    if settings.rewards_from == "recorded":
        rules = RewardSettings(require_thinking=settings.require_thinking == "true")
        rate = None if code is None else rates[-1]
        reward = compute_reward(turn.response, rate, max(rates[:-1], default=0.0), rules).total
    return Candidate(code or "", status, reward, origin, text, context)


def _prompt(
    problem: Problem, seen: Sequence[Message], settings: JudgedSettings, prompts: PromptSet
) -> Sequence[Message]:
    """Of a model's responses the prompt that it saw, if the record has it; of bare programs the prompt set's."""
    if settings.responses == "programs":
        return opening_messages(prompts.first_turn(problem.question, problem.tests.fn_name), prompts)
    return seen or first_messages(problem, prompts)
