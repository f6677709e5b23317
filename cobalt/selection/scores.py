"""Evaluated trajectories as counts of tests passed, so that selection and segmentation are exact.

Rates are decimals. Counts can be added over public and hidden tests and compared without rounding. A rate that is not a
share of its problem's tests shows that rate and tests do not belong together. One record is held in memory at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cobalt.episode.record import axes_are_known, read_trajectories, recorded_public_tests
from cobalt.episode.trajectory import ProblemTrajectories, Trajectory
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError, naming

_TOLERANCE = 1e-6  # of a rate, because rates were written as decimals


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """A trajectory and how many tests its programs pass, public ones and all, in each turn that is used."""

    trajectory: Trajectory
    public_passed: list[int]
    passed: list[int]


@dataclass(frozen=True, slots=True)
class ScoredProblem:
    """A problem, its trajectories by sample, and the numbers of its public tests and of all its tests."""

    problem: Problem
    trajectories: tuple[ScoredTrajectory, ...]
    public_tests: int
    tests: int


def read_scored(path: Path, turns: int) -> Iterator[ScoredProblem]:
    """Read the evaluated records of a multi-turn run, this project's or the authors', one at a time.

    Of each trajectory the first `turns` turns are used.

    Raises:
        UserError: a record is malformed or not evaluated, or has fewer turns.
    """
    for group in read_trajectories(path):
        with naming(f"{path}: record {group.problem.id!r}"):
            _check_record(group, turns)
            scored = score_problem(group, turns)
        yield scored


def check_evaluated(group: ProblemTrajectories) -> None:
    """Raise UserError if a record's public tests are perturbed ones, or the axes of its fields are not certain."""
    if recorded_public_tests(group.problem) == "perturbed":
        raise UserError(
            "its feedback and public pass rates come from perturbed tests: give a run on the true tests (perturbed"
            " prompts are added by --perturbed_ratio of process_multi_turn_taco.py)"
        )
    if not axes_are_known(group):
        raise UserError(
            "it has as many turns as samples, so the axes of its fields cannot be told apart: run the programs again"
            " with run_multi_turn_vllm.py --replay_file, then eval_multi_turn.py"
        )


def _check_record(group: ProblemTrajectories, turns: int) -> None:
    """Check that a record is one that prompts can be made from."""
    check_evaluated(group)
    if not len(group.problem.public_tests):
        raise UserError("it has public pass rates, but no public tests (field 'public_test_cases')")
    for trajectory in group.trajectories:
        if len(trajectory.turns) < turns:
            raise UserError(
                f"it has {len(trajectory.turns)} turns, and {turns} were asked for: give --num_turns"
                f" {len(trajectory.turns)}, or collect more"
            )
        if not trajectory.messages:
            raise UserError("it has no 'conversations': run a multi-turn script first")
        if trajectory.turns[-1].feedback is None:
            raise UserError("a conversation does not end with the feedback on its last program")


def score_problem(group: ProblemTrajectories, turns: int) -> ScoredProblem:
    """Count the tests that the programs of a problem's trajectories pass, in the first `turns` turns of each.

    Raises:
        UserError: see `score_trajectory`.
    """
    public, hidden = len(group.problem.public_tests), len(group.problem.hidden_tests)
    scored = tuple(score_trajectory(trajectory, turns) for trajectory in group.trajectories)
    return ScoredProblem(group.problem, scored, public, public + hidden)


def score_trajectory(trajectory: Trajectory, turns: int) -> ScoredTrajectory:
    """Count the tests that the first `turns` programs of a trajectory pass.

    Raises:
        UserError: the trajectory has not been evaluated, or a rate is not a share of the problem's tests.
    """
    public, hidden = len(trajectory.problem.public_tests), len(trajectory.problem.hidden_tests)
    public_passed = [_passed("public_pass_rates", rate, public) for rate in trajectory.public_pass_rates[:turns]]
    hidden_passed = [_passed("all_pass_rates", rate, hidden) for rate in trajectory.hidden_pass_rates[:turns]]
    passed = [sum(counts) for counts in zip(public_passed, hidden_passed, strict=True)]
    return ScoredTrajectory(trajectory, public_passed, passed)


def _passed(field: str, rate: float, tests: int) -> int:
    """Number of tests, out of `tests`, that a rate stands for."""
    passed = round(rate * tests)
    if abs(rate * tests - passed) > _TOLERANCE * tests:
        raise UserError(
            f"field {field!r} holds {rate!r}, which is not a share of {tests} tests: the rates come from other tests"
            " than the record's, so evaluate the record again"
        )
    return passed
