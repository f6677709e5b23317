"""Ceilings of open sentences: what they leave to be learned from feedback, computed exactly (docs/pocket.md).

Three players know every reading of a statement, all equally likely, and not which one the coin chose. The perfect
reader writes the program of one and sees no feedback. The perfect repairer is shown the first failing public test and
strikes out the readings that it refutes. The blind repairer sees only that a test failed, and tries another reading.
Their choices are enumerated, in fractions; programs run in this process (`execution`).
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from cobalt.pocket.cases import PocketProblem, passes
from cobalt.pocket.demonstrations import Failure, first_failure, judge_here
from cobalt.pocket.execution import run_program

TURNS = 5
"""Turns that ceilings are computed for by default, the first one included."""


def ceilings(problems: Sequence[PocketProblem], turns: int = TURNS) -> dict[str, Any]:
    """The ceilings of `problems`, at least one, for `turns` turns, at least one, as JSON.

    Returns:
        `problems`: their number. `open_slots`: how many of them have 0, 1, 2, ... open sentences. `repair` and `blind`:
        the share (0 to 1, six digits) that the repairer has solved after turn 0, 1, ... `single_turn`: the share that a
        perfect reader solves, which is that of a repairer who has no feedback yet.
    """
    repair = _means([repair_chances(problem, turns) for problem in problems])
    readings = [len(problem.task.readings) for problem in problems]
    blind = [[Fraction(min(turn + 1, count), count) for turn in range(turns)] for count in readings]
    open_slots = Counter(len(problem.task.open_slots) for problem in problems)
    return {
        "problems": len(problems),
        "open_slots": {str(count): open_slots[count] for count in sorted(open_slots)},
        "single_turn": repair[0],
        "repair": repair,
        "blind": _means(blind),
    }


def repair_chances(problem: PocketProblem, turns: int) -> list[Fraction]:
    """Probability that a perfect repairer has solved `problem` after turn 0, 1, ..., `turns` - 1."""
    task, public = problem.task, problem.public
    solved_at = [Fraction() for _ in range(turns)]

    def go_on(readings: Sequence[str], turn: int, chance: Fraction) -> None:
        """Try each of the programs in `readings` at `turn`, which is reached with probability `chance`."""
        for program in readings:
            share = chance / len(readings)
            failure = first_failure(judge_here(program, public), public)
            if failure is None:
                # No test speaks against the program: a perfect repairer keeps it, right or wrong.
                if judge_here(program, problem.hidden).all_passed:
                    solved_at[turn] += share
            elif turn + 1 < turns:
                go_on([other for other in readings if _agrees(other, failure)], turn + 1, share)

    go_on([task.program(reading) for reading in task.readings], 0, Fraction(1))
    return [sum(solved_at[: turn + 1], Fraction()) for turn in range(turns)]


def _agrees(program: str, failure: Failure) -> bool:
    """Whether a program may be right by the feedback on a failing test, which after a crash has no expected output."""
    outcome = run_program(program, failure.stdin)
    return outcome.stderr is None if failure.crashed else passes(outcome, failure.expected)


def _means(rows: Sequence[Sequence[Fraction]]) -> list[float]:
    return [round(float(sum(column, Fraction()) / len(rows)), 6) for column in zip(*rows, strict=True)]
