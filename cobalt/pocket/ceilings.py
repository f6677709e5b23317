"""Ceilings of open sentences: what they leave to be learned from feedback, computed exactly (docs/pocket.md).

Three players know every reading of a statement, all equally likely, and not which one the coin chose. The perfect
reader writes the program of one and sees no feedback. The perfect repairer is shown the first failing public test and
strikes out the readings that it refutes. The blind repairer sees only that a test failed, and tries another reading.
Their choices are enumerated, in fractions; programs run in this process (`execution`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from cobalt.episode import Message, PromptSet, load_prompts, opening_messages
from cobalt.episode.episode import Episode
from cobalt.episode.trajectory import Turn
from cobalt.pocket.cases import PocketProblem, passes
from cobalt.pocket.dataset import PROMPTS
from cobalt.pocket.demonstrations import Failure, first_failure, judge_here, respond
from cobalt.pocket.execution import run_program

TURNS = 5
"""Turns that ceilings are computed for by default, the first one included."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of a set of problems.

    Attributes:
        problems: How many problems there are.
        open_slots: How many of them have 0, 1, 2, ... open sentences; keys ascending.
        repair: Share (0 to 1) that a perfect repairer has solved after turn 0, 1, ...
        blind: Share that a blind repairer has solved after turn 0, 1, ...
    """

    problems: int
    open_slots: Mapping[int, int]
    repair: tuple[Fraction, ...]
    blind: tuple[Fraction, ...]

    @property
    def single_turn(self) -> Fraction:
        """Share that a perfect reader solves at the first turn: there a repairer has no feedback yet."""
        return self.repair[0]

    def to_json(self) -> dict[str, Any]:
        """The ceilings and the repair rates, shares rounded to six digits."""
        return {
            "problems": self.problems,
            "open_slots": {str(count): number for count, number in self.open_slots.items()},
            "single_turn": round(float(self.single_turn), 6),
            "repair": _rounded(self.repair),
            "blind": _rounded(self.blind),
            "repair_rates": _rounded(repair_rates(self.repair)),
            "blind_repair_rates": _rounded(repair_rates(self.blind)),
        }


def ceilings(problems: Sequence[PocketProblem], turns: int = TURNS) -> Ceilings:
    """The ceilings of `problems`, at least one, for `turns` turns, at least one."""
    prompts = load_prompts(PROMPTS)
    repair = [repair_chances(problem, turns, prompts) for problem in problems]
    readings = [len(problem.task.readings) for problem in problems]
    blind = [[Fraction(min(turn + 1, count), count) for turn in range(turns)] for count in readings]
    return Ceilings(
        problems=len(problems),
        open_slots=dict(sorted(Counter(len(problem.task.open_slots) for problem in problems).items())),
        repair=_mean(repair),
        blind=_mean(blind),
    )


def repair_rates(solved: Sequence[Fraction]) -> list[Fraction | None]:
    """Share of the problems unsolved before turn 1, 2, ... that are solved at it; None where all were solved."""
    return [(after - before) / (1 - before) if before < 1 else None for before, after in pairwise(solved)]


def repair_chances(problem: PocketProblem, turns: int, prompts: PromptSet) -> list[Fraction]:
    """Probability that a perfect repairer has solved `problem` after turn 0, 1, ..., `turns` - 1."""
    task, public = problem.task, problem.public
    solved_at = [Fraction() for _ in range(turns)]

    def go_on(messages: Sequence[Message], readings: Sequence[str], turn: int, chance: Fraction) -> None:
        """Try each of the programs in `readings` at `turn`, which is reached with probability `chance`."""
        for program in readings:
            share = chance / len(readings)
            episode = Episode(messages, public, prompts, turns=turns - turn, enable_thinking=True)
            result = judge_here(program, public)
            episode.observe(Turn(respond("", program)), result)
            failure = first_failure(result, public)
            if failure is None:
                # No test speaks against the program: a perfect repairer keeps it, right or wrong.
                if judge_here(program, problem.hidden).all_passed:
                    solved_at[turn] += share
            elif not episode.done:
                go_on(episode.messages, [other for other in readings if _agrees(other, failure)], turn + 1, share)

    opening = opening_messages(prompts.first_turn(task.statement), prompts)
    go_on(opening, [task.program(reading) for reading in task.readings], 0, Fraction(1))
    return [sum(solved_at[: turn + 1], Fraction()) for turn in range(turns)]


def _agrees(program: str, failure: Failure) -> bool:
    """Whether a program may be right by the feedback on a failing test, which after a crash has no expected output."""
    outcome = run_program(program, failure.stdin)
    return outcome.stderr is None if failure.crashed else passes(outcome, failure.expected)


def _mean(rows: Sequence[Sequence[Fraction]]) -> tuple[Fraction, ...]:
    return tuple(sum(column, Fraction()) / len(rows) for column in zip(*rows, strict=True))


def _rounded(shares: Sequence[Fraction | None]) -> list[float | None]:
    return [None if share is None else round(float(share), 6) for share in shares]
