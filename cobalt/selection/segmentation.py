"""Points at which a trajectory is cut into contexts: after each of its programs, until a rule stops it.

Cobalt §3 and the authors' `process_multi_turn_taco.py`. State t is the conversation after t programs, and ends with
the feedback on the last of them. The limit on its length is measured elsewhere (`cobalt.episode.token_count`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cobalt.episode import Message
from cobalt.problems.problem import Problem
from cobalt.selection.scores import ScoredProblem, ScoredTrajectory

SolvedRule = Literal["paper", "off"]
StopRule = Literal["public_passed_twice", "solved_again"]


@dataclass(frozen=True, slots=True)
class Context:
    """A conversation that the policy is asked to continue: it has `turn` programs and ends with a user message.

    `best_pass_rate` is that of its best program, over all tests, public and hidden; 0.0 without a program.
    """

    problem: Problem
    turn: int
    messages: list[Message]
    best_pass_rate: float


def usable_states(
    public_passed: Sequence[bool], solved: Sequence[bool], solved_rule: SolvedRule = "paper"
) -> tuple[int, StopRule | None]:
    """Number of a trajectory's states 1, 2, ... that are used, and the rule that stopped it (None: all are used).

    `public_passed_twice`: at state t the programs t-1 and t both pass every public test, so feedback has nothing left
    to say. `solved_again`: at state t the programs t and t+2 both pass every test. With three turns that can only be
    state 1, which drops right-wrong-right trajectories entirely. The authors' index is off by one there, and they do
    not say which two neighbours they meant. So the rule is either theirs ("paper", on which the published numbers
    rest) or none ("off"). The lists say of each program whether it passes all public tests, and all tests.
    """
    for state in range(1, len(solved) + 1):
        if state >= 2 and public_passed[state - 1] and public_passed[state - 2]:
            return state - 1, "public_passed_twice"
        if solved_rule == "paper" and state + 1 < len(solved) and solved[state - 1] and solved[state + 1]:
            return state - 1, "solved_again"
    return len(solved), None


def context(group: ScoredProblem, scored: ScoredTrajectory, turn: int) -> Context:
    """The state of a trajectory after `turn` programs; `turn` 0 is the problem alone."""
    best = max(scored.passed[:turn], default=0) / group.tests
    return Context(group.problem, turn, scored.trajectory.context(turn), best)


def cut(
    group: ScoredProblem, scored: ScoredTrajectory, solved_rule: SolvedRule = "paper"
) -> tuple[list[Context], StopRule | None]:
    """The states of a selected trajectory that are used, the problem alone first, and the rule of `usable_states`."""
    usable, rule = usable_states(
        [passed == group.public_tests for passed in scored.public_passed],
        [passed == group.tests for passed in scored.passed],
        solved_rule,
    )
    return [context(group, scored, turn) for turn in range(usable + 1)], rule
