"""Where a trajectory is cut: every stopping rule on trajectories worked by hand."""

import pytest
from support import trajectory_record, write_lines

from cobalt.selection.scores import read_scored
from cobalt.selection.segmentation import context, usable_states

# Per program: whether it passes all public tests, and whether it passes all tests.
RIGHT, PUBLIC_ONLY, WRONG = (True, True), (True, False), (False, False)


@pytest.mark.parametrize(
    ("programs", "states", "rule"),
    [
        ([WRONG, WRONG, RIGHT], 3, None),
        ([WRONG, RIGHT, WRONG], 3, None),
        ([RIGHT, WRONG, WRONG], 3, None),
        # (a) two feedbacks in a row that found nothing: the second of them is not used.
        ([WRONG, RIGHT, RIGHT], 2, "public_passed_twice"),
        ([WRONG, PUBLIC_ONLY, RIGHT], 2, "public_passed_twice"),
        ([PUBLIC_ONLY, RIGHT, WRONG], 1, "public_passed_twice"),
        ([PUBLIC_ONLY, WRONG, RIGHT], 3, None),
        # (c) programs 1 and 3 right: nothing of the trajectory is used, whatever program 2 is.
        ([RIGHT, WRONG, RIGHT], 0, "solved_again"),
        ([RIGHT, RIGHT, RIGHT], 0, "solved_again"),
        ([RIGHT, PUBLIC_ONLY, RIGHT], 0, "solved_again"),
        ([PUBLIC_ONLY, WRONG, PUBLIC_ONLY], 3, None),
        # Other numbers of turns.
        ([RIGHT], 1, None),
        ([RIGHT, RIGHT], 1, "public_passed_twice"),
        ([WRONG, RIGHT, WRONG, RIGHT], 1, "solved_again"),
    ],
)
def test_the_papers_rules_stop_a_trajectory(programs, states, rule):
    public_passed, solved = zip(*programs, strict=True)
    assert usable_states(public_passed, solved) == (states, rule)


@pytest.mark.parametrize(
    ("programs", "states", "rule"),
    [([RIGHT, WRONG, RIGHT], 3, None), ([RIGHT] * 3, 1, "public_passed_twice")],
)
def test_with_solved_rule_off_the_rule_of_public_passes_still_holds(programs, states, rule):
    public_passed, solved = zip(*programs, strict=True)
    assert usable_states(public_passed, solved, "off") == (states, rule)


def test_a_context_ends_with_feedback_and_remembers_the_best_program_in_it(tmp_path):
    record = trajectory_record(0, [[(1, 0), (2, 1), (0, 0)]])
    [group] = read_scored(write_lines(tmp_path / "e.jsonl", [record]), 3)
    [trajectory] = group.trajectories
    contexts = [context(group, trajectory, turn) for turn in range(4)]
    assert [len(cut.messages) for cut in contexts] == [2, 4, 6, 8]
    assert [cut.messages[-1]["content"] for cut in contexts] == ["problem 0", "feedback 0", "feedback 1", "feedback 2"]
    assert [cut.best_pass_rate * group.tests for cut in contexts] == pytest.approx([0, 1, 3, 3])
