"""Trajectories of a problem that are worth training on (Cobalt §3; the authors' `process_multi_turn_taco.py`).

Everything is counted in tests passed, so that comparisons and ties are exact. Only `authors` of `select` and
`authors_solved_at_first_turn` compute as the authors' script does where the paper's text does not ask for it. No file
is read or written here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cobalt.episode.record import decode_results
from cobalt.selection.scores import ScoredProblem, ScoredTrajectory

UNCHANGING = "dropped: no turn changes the pass rate"
NEVER_RIGHT = "dropped: never right"
DOWN_SAMPLED = "dropped: down-sampling"


@dataclass(frozen=True, slots=True)
class Selection:
    """The trajectories of a problem to cut into prompts, by sample, and how many others each rule has dropped."""

    selected: tuple[ScoredTrajectory, ...]
    dropped: Mapping[str, int]


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
        dropped = {UNCHANGING: unchanging, DOWN_SAMPLED: len(changing) - len(lowest)}
        return Selection(tuple(item[2] for item in lowest), dropped)
    solved = [item for item in changing if item[1] == (1.0 if authors else group.tests)]
    subset: Callable[[Sequence[Any], int], list[int]] = _authors_subset if authors else max_variance_subset
    chosen = subset([item[0] for item in solved], most)
    dropped = {
        UNCHANGING: unchanging,
        NEVER_RIGHT: len(changing) - len(solved),
        DOWN_SAMPLED: len(solved) - len(chosen),
    }
    return Selection(tuple(solved[index][2] for index in chosen), dropped)


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
    """Ascending positions of the `size` scores with the largest variance; all, where there are no more.

    By arXiv 2504.13818, Lemma 3.1 and Algorithm 2: the best subset of a sorted list is its `size - k` lowest and `k`
    highest for some k from 0 to `size`. Of several best ones it is the one with the smallest k; of equal scores the low
    end takes the first positions and the high end the last ones. The authors' loop leaves k = `size` out, which costs
    no variance, and takes up to twice `size` where there are more than 16 scores.
    """
    count = len(scores)
    if count <= size:
        return list(range(count))
    order = sorted(range(count), key=lambda index: (scores[index], index))

    def scaled_variance(subset: list[int]) -> int:
        chosen = [scores[index] for index in subset]
        return size * sum(score**2 for score in chosen) - sum(chosen) ** 2

    ends = [order[: size - high] + order[count - high :] for high in range(size + 1)]
    best = max(ends, key=scaled_variance)
    return sorted(best)
