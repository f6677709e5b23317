"""Which trajectories of a problem are worth training on (Cobalt §3; the authors' `process_multi_turn_taco.py`).

Everything is counted in tests passed, so that comparisons and ties are exact. Only `authors` of `select` and
`authors_solved_at_first_turn` compute as the authors' script does where the paper's text does not ask for it. No file
is read or written here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from cobalt.episode.record import decode_results
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


def select(group: ScoredProblem, most: int, *, is_test: bool = False, authors: bool = False) -> Selection:
    """Choose at most `most` trajectories of a problem by their scores: most tests passed at a turn minus fewest.

    For training, the candidates are those that change and reach a correct program; of more than `most` candidates, the
    subset with the largest variance of scores is chosen. For tests, it is the trajectory with the lowest score among
    those that change (the first of several). `authors`: scores are over every turn in the file, not only of the turns
    that are cut, and of pass rates in floating point, so that of equal scores rounding may make one the lowest.
    """
    rated = []
    for scored in group.trajectories:
        values: Sequence[float] = _authors_pass_rates(scored, group) if authors else scored.passed
        rated.append((max(values) - min(values), max(values), scored))
    changing = [item for item in rated if item[0] > 0]
    unchanging = len(rated) - len(changing)
    if is_test:
        lowest = sorted(changing, key=lambda item: item[0])[:1]
        return Selection(tuple(item[2] for item in lowest), unchanging, 0, len(changing) - len(lowest))
    solved = [item for item in changing if item[1] == (1.0 if authors else group.tests)]
    subset: Callable[[Sequence[Any], int], list[int]] = _authors_subset if authors else max_variance_subset
    chosen = subset([item[0] for item in solved], most)
    return Selection(
        tuple(solved[index][2] for index in chosen), unchanging, len(changing) - len(solved), len(solved) - len(chosen)
    )


def authors_solved_at_first_turn(group: ScoredProblem) -> bool:
    """Whether the single-turn run, whose `exec_results` the record still has, passed every test with every sample.

    Raises:
        UserError: the record has no such results.
    """
    return all(result.all_passed for result in decode_results(group.problem.record, len(group.problem.tests)))


def _authors_pass_rates(scored: ScoredTrajectory, group: ScoredProblem) -> list[float]:
    """The pass rate over all tests of each turn in the file, by the authors' formula."""
    trajectory, public, tests = scored.trajectory, group.public_tests, group.tests
    return [
        (hidden_rate * (tests - public) + public_rate * public) / tests
        for public_rate, hidden_rate in zip(trajectory.public_pass_rates, trajectory.hidden_pass_rates, strict=True)
    ]


def _authors_subset(scores: Sequence[float], size: int) -> list[int]:
    """As `max_variance_subset`, but ascending by score, and all `size` highest scores are never chosen together."""
    ranked = sorted(range(len(scores)), key=scores.__getitem__)
    if len(ranked) <= size:
        return ranked
    ends = [ranked[: size - high] + ranked[len(ranked) - high :] for high in range(size)]
    return max(ends, key=lambda subset: float(np.var([scores[index] for index in subset])))


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
