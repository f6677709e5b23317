"""Which trajectories of a problem are worth training on (Cobalt §3; the authors' `process_multi_turn_taco.py`).

Everything is counted in tests passed, so that comparisons and ties are exact. Only `authors_selection` and
`authors_solved_at_first_turn` compute as the authors' script does where the paper's text does not ask for it. No file
is read or written here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from cobalt.episode.record import decode_passing
from cobalt.selection.scores import ScoredProblem, ScoredTrajectory


@dataclass(frozen=True, slots=True)
class Selection:
    """The outcome for one problem.

    Attributes:
        selected: Trajectories to cut into prompts, by sample.
        unchanging: How many were dropped because no turn changed the number of tests passed.
        never_solved: How many more were dropped because no program passes every test.
        not_needed: How many of the rest down-sampling left out.
    """

    selected: tuple[ScoredTrajectory, ...]
    unchanging: int
    never_solved: int
    not_needed: int


def solved_at_first_turn(group: ScoredProblem) -> bool:
    """Whether every first program passes every test, so that the problem teaches nothing (dynamic sampling)."""
    return all(trajectory.passed[0] == group.tests for trajectory in group.trajectories)


def score(trajectory: ScoredTrajectory) -> int:
    """Most tests passed at a turn minus fewest; over all tests, public and hidden."""
    return max(trajectory.passed) - min(trajectory.passed)


def select(group: ScoredProblem, most: int, *, is_test: bool = False) -> Selection:
    """Choose at most `most` trajectories of a problem.

    For training, the candidates are those that change and reach a correct program; of more than `most` candidates, the
    subset with the largest variance of scores is chosen. For tests, it is the trajectory with the lowest score among
    those that change (the first of several).
    """
    changing = [trajectory for trajectory in group.trajectories if score(trajectory) > 0]
    unchanging = len(group.trajectories) - len(changing)
    if is_test:
        lowest = sorted(changing, key=lambda trajectory: (score(trajectory), trajectory.trajectory.sample))[:1]
        return Selection(tuple(lowest), unchanging, 0, len(changing) - len(lowest))
    solved = [trajectory for trajectory in changing if max(trajectory.passed) == group.tests]
    chosen = max_variance_subset([score(trajectory) for trajectory in solved], most)
    return Selection(
        tuple(solved[index] for index in chosen),
        unchanging,
        len(changing) - len(solved),
        len(solved) - len(chosen),
    )


def authors_solved_at_first_turn(group: ScoredProblem) -> bool:
    """Whether the single-turn run, whose `exec_results` the record still has, passed every test with every sample.

    Raises:
        UserError: the record has no such results.
    """
    return all(map(all, decode_passing(group.problem.record, len(group.problem.tests))))


def authors_selection(group: ScoredProblem, most: int, *, is_test: bool = False) -> Selection:
    """As `select`, but over every turn in the file, and with pass rates in floating point.

    A score is then not only of the turns that are cut, and of equal scores rounding may make one the lowest.
    """
    rated = []
    for scored in group.trajectories:
        rates = authors_pass_rates(scored, group.public_tests, group.tests)
        rated.append((max(rates) - min(rates), max(rates), scored))
    changing = [item for item in rated if item[0] > 0]
    unchanging = len(rated) - len(changing)
    if is_test:
        lowest = sorted(changing, key=lambda item: item[0])[:1]
        return Selection(tuple(item[2] for item in lowest), unchanging, 0, len(changing) - len(lowest))
    solved = [item for item in changing if item[1] == 1.0]
    ranked = sorted(solved, key=lambda item: item[0])
    if len(ranked) > most:
        ends = [ranked[: most - high] + ranked[len(ranked) - high :] for high in range(most)]
        ranked = max(ends, key=lambda subset: float(np.var([item[0] for item in subset])))
    return Selection(
        tuple(item[2] for item in ranked), unchanging, len(changing) - len(solved), len(solved) - len(ranked)
    )


def authors_pass_rates(scored: ScoredTrajectory, public: int, tests: int) -> list[float]:
    """The pass rate over all tests of each turn in the file, by the authors' formula."""
    trajectory = scored.trajectory
    return [
        (hidden_rate * (tests - public) + public_rate * public) / tests
        for public_rate, hidden_rate in zip(trajectory.public_pass_rates, trajectory.hidden_pass_rates, strict=True)
    ]


def max_variance_subset(scores: Sequence[int], size: int) -> list[int]:
    """Positions of the `size` scores with the largest variance (arXiv 2504.13818, Lemma 3.1 and Algorithm 2).

    The best subset of a sorted list is its `size - k` lowest and `k` highest for some k from 0 to `size`. Each k
    takes constant time with prefix sums, so the whole takes O(n log n). Of several best ones it is the one with the
    smallest k; of equal scores the low end takes the first positions and the high end the last ones. The authors'
    loop leaves k = `size` out, which costs no variance, and takes up to twice `size` where n is more than 16.

    Args:
        scores: Integers, any number of them.
        size: How many to choose; all of them where there are no more.

    Returns:
        Ascending positions in `scores`.
    """
    if size < 0:
        raise ValueError(f"size is {size}: it must be 0 or more")
    count = len(scores)
    if count <= size:
        return list(range(count))
    order = sorted(range(count), key=lambda index: (scores[index], index))
    sums = [0, *accumulate(scores[index] for index in order)]
    squares = [0, *accumulate(scores[index] ** 2 for index in order)]

    def scaled_variance(high: int) -> int:
        low, start = size - high, count - high
        total = sums[low] + sums[count] - sums[start]
        return size * (squares[low] + squares[count] - squares[start]) - total**2

    high = max(range(size + 1), key=scaled_variance)
    return sorted(order[: size - high] + order[count - high :])
