"""Which trajectories are kept: down-sampling against exhaustive search, the paper's filters, ties."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import trajectory_record, write_lines

from cobalt.selection.scores import read_scored
from cobalt.selection.selection import max_variance_subset, select, solved_at_first_turn

SCORES = st.lists(st.integers(0, 20), max_size=12)
RIGHT, HALF, WRONG = (2, 2), (1, 1), (0, 0)  # public and hidden tests passed, of two each


@pytest.fixture
def group_of(tmp_path):
    def make(*samples):
        path = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, samples)])
        [group] = read_scored(path, len(samples[0]))
        return group

    return make


@given(SCORES, st.integers(0, 13))
def test_down_sampling_finds_the_largest_variance_that_exhaustive_search_finds(scores, size):
    chosen = max_variance_subset(scores, size)
    assert len(chosen) == len(set(chosen)) == min(size, len(scores))
    if chosen:
        best = max(np.var(subset) for subset in combinations(scores, len(chosen)))
        assert np.var([scores[index] for index in chosen]) == pytest.approx(best)


@given(st.lists(st.integers(0, 20), min_size=17, max_size=80), st.integers(1, 16))
def test_down_sampling_never_gives_more_than_asked_for_and_takes_both_ends(scores, size):
    chosen = max_variance_subset(scores, size)
    taken = sorted(scores[index] for index in chosen)
    ordered = sorted(scores)
    assert len(taken) == size
    assert any(taken == ordered[: size - k] + ordered[len(ordered) - k :] for k in range(size + 1))


@given(SCORES.flatmap(lambda scores: st.tuples(st.just(scores), st.permutations(scores))), st.integers(1, 12))
def test_which_scores_are_chosen_does_not_depend_on_their_order(both, size):
    scores, permuted = both
    assert sorted(scores[i] for i in max_variance_subset(scores, size)) == sorted(
        permuted[i] for i in max_variance_subset(permuted, size)
    )


@pytest.mark.parametrize(
    ("scores", "size", "chosen"),
    [
        ([0, 0, 1, 1], 2, [0, 3]),  # binary scores, even size: half and half (arXiv 2504.13818, Theorem 2)
        ([5, 5, 5, 5], 2, [0, 1]),  # all equal: the smallest k, the first positions
        ([3, 1, 1, 3], 2, [1, 3]),  # of equal scores the low end takes the first, the high end the last
        ([1, 9, 5], 1, [0]),
        ([1, 2], 4, [0, 1]),
        ([], 4, []),
        ([4, 4], 0, []),
    ],
)
def test_ties_are_decided_by_position(scores, size, chosen):
    assert max_variance_subset(scores, size) == chosen


@pytest.mark.parametrize(("first", "solved"), [(RIGHT, True), ((2, 1), False), ((1, 2), False)])
def test_a_problem_that_every_first_program_solves_is_recognised(group_of, first, solved):
    assert solved_at_first_turn(group_of([RIGHT, WRONG], [first, RIGHT])) is solved


@pytest.mark.parametrize(
    ("samples", "rules", "selected", "left_out"),
    [
        # The second and third never change, the fourth is never right, and right once is enough.
        (
            [[WRONG, HALF, RIGHT], [WRONG] * 3, [RIGHT] * 3, [WRONG, HALF, (2, 1)], [RIGHT, HALF, HALF]],
            {}, [0, 4], (2, 1, 0),
        ),
        # Scores 1, 2, 2, 4, 4 over four tests: two of the lowest and two of the highest vary most.
        (
            [[(2, 1), RIGHT], [HALF, RIGHT], [(0, 2), RIGHT], [WRONG, RIGHT], [RIGHT, WRONG]],
            {}, [0, 1, 3, 4], (0, 0, 1),
        ),
        # A test set takes the one that changes least, right or not.
        ([[WRONG, RIGHT], [RIGHT, RIGHT], [HALF, (2, 1)], [HALF, (1, 2)]], {"is_test": True}, [2], (1, 0, 2)),
        # The authors' are in ascending order of their scores, which are 4, 4, 2, 2, 1.
        (
            [[RIGHT, WRONG], [WRONG, RIGHT], [(0, 2), RIGHT], [HALF, RIGHT], [(2, 1), RIGHT]],
            {"authors": True}, [4, 2, 0, 1], (0, 0, 1),
        ),
    ],
    ids=["changing and right", "down-sampling", "test set", "authors"],
)  # fmt: skip
def test_trajectories_are_selected_by_the_papers_rules(group_of, samples, rules, selected, left_out):
    selection = select(group_of(*samples), 4, **rules)
    assert [scored.trajectory.sample for scored in selection.selected] == selected
    assert (selection.unchanging, selection.never_solved, selection.not_needed) == left_out
