"""What a record of judged programs holds, and the readers of this project's results: single-turn and multi-turn ones.

Which responses are taken, and whether as they were written, the settings say (`JudgedSettings.responses`). A later turn
as it was written has a context: the messages between the problem and the response that the model saw, in which its
earlier answers are shortened as in every rollout (`cobalt.episode.history_text`). Recorded rewards are those of
training by Cobalt: `cobalt.reward` with its default settings, except for `require_thinking`, on the pass rate over all
tests and the best pass rate of the programs in the context. Nothing is judged here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cobalt.datasets.offline.contrast import Candidate
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
from cobalt.problems.problem import Problem, TestSuite
from cobalt.reward import RewardSettings, compute_reward
from cobalt.selection.scores import score_trajectory
from cobalt.stage.errors import UserError

# What becomes of a program, besides the counts of the other modules.
UNKNOWN_RESULT = "dropped: the result does not say whether the program is right"
NOT_FINISHED = "dropped: the response was cut off, or the engine failed"
NO_PROGRAM = "dropped: the response has no program"

_PROBLEM_FIELDS = (
    "id", "difficulty", "question", "instruction", "test_cases", "public_test_cases", "hidden_test_cases", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dropped:
    """A program that cannot be used: why, as a key of the counts, and where it stands in the record."""

    reason: str
    origin: str


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A problem with its judged programs.

    Attributes:
        statement: The problem's statement.
        tests: All its tests; None if the record has none.
        messages: The prompt.
        programs: The programs, in the order of the record.
        problem: The record's fields that are about the problem; None if the record has no tests.
    """

    statement: str
    tests: TestSuite | None
    messages: Sequence[Message]
    programs: Sequence[Candidate | Dropped]
    problem: Mapping[str, Any] | None


def judged_record(
    problem: Problem, messages: Sequence[Message], programs: Sequence[Candidate | Dropped]
) -> JudgedRecord:
    """The record of a problem with tests."""
    without_results = {name: problem.record[name] for name in _PROBLEM_FIELDS if name in problem.record}
    return JudgedRecord(problem.question, problem.tests, messages, programs, without_results)


def read_single_turn(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The responses of a single-turn record.

    Raises:
        UserError: the record is malformed; the message names the field.
    """
    problem = Problem.parse(record)
    turns = decode_first_turns(record)
    results = decode_results(record, len(problem.tests))
    if turns is None or len(results) != len(turns):
        raise UserError("field 'exec_results' must have one entry for each of 'responses'")
    programs = []
    for sample, (turn, result) in enumerate(zip(turns, results, strict=True)):
        kinds = [verdict.kind for verdict in result.verdicts]
        programs.append(_program(turn, kinds, f"{sample}/0", settings, [result.pass_rate]))
    return judged_record(problem, _prompt(problem, (), settings, prompts), programs)


def read_multi_turn(record: Mapping[str, Any], settings: JudgedSettings, prompts: PromptSet) -> JudgedRecord:
    """The responses of an evaluated multi-turn record.

    Raises:
        UserError: the record is malformed or not evaluated, or its tests are perturbed ones.
    """
    problem = Problem.parse(record)
    if recorded_public_tests(problem) == "perturbed":
        raise UserError(
            "its public tests are perturbed ones, which no program passes: give the run on the benign tests"
        )
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
    return judged_record(problem, _prompt(problem, seen, settings, prompts), programs)


def _context(trajectory: Trajectory, number: int) -> tuple[Message, ...]:
    """The messages between the problem and a turn."""
    if not number:
        return ()
    if not trajectory.messages:
        raise UserError(
            "it has no 'conversations', which hold the contexts of its later turns: give a multi-turn result"
        )
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
    """The prompt: of a model's responses the one that it saw, if the file has it; of bare programs the prompt set's."""
    if settings.responses == "programs":
        return opening_messages(prompts.first_turn(problem.question, problem.tests.fn_name), prompts)
    return seen or first_messages(problem, prompts)
