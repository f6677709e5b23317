"""Curves of training runs, from metrics files as the trainer writes them."""

import json

import pytest

from cobalt.report.curves import TrainingCurves, read_curves
from cobalt.report.plots import running_mean
from cobalt.report.training import Arguments, main
from cobalt.stage.errors import UserError


def training(folder, lines):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


LINES = [
    {"step": 0, "metrics": {"val-core/pocket/acc/mean@1": 0.25}},
    {"step": 1, "metrics": {"reward/score": -0.5}},
    {"step": 2, "metrics": {"reward/score": 0.5, "val-core/pocket/acc/mean@1": 0.75, "val-aux/other": 9}},
]


def test_curves_are_the_steps_that_have_a_reward_and_those_that_were_validated(tmp_path):
    run = training(tmp_path / "ft", LINES)
    assert read_curves(run) == TrainingCurves(rewards=[(1, -0.5), (2, 0.5)], validations=[(0, 0.25), (2, 0.75)])


def test_a_running_mean_has_the_steps_of_its_points_and_looks_back_over_five_of_them():
    rewards = [(step, float(step)) for step in range(1, 8)]
    assert running_mean(rewards) == [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5), (5, 3.0), (6, 4.0), (7, 5.0)]


def test_a_folder_that_is_not_a_training_run_is_refused_by_path_and_line(tmp_path):
    with pytest.raises(UserError, match="metrics.jsonl"):
        main(Arguments((str(tmp_path),), tmp_path / "x.png"))
    with pytest.raises(UserError, match=".png or .svg"):
        main(Arguments((str(training(tmp_path / "a", LINES)),), tmp_path / "x.pdf"))
    broken = training(tmp_path / "b", [*LINES, {"loss": 1}])
    with pytest.raises(UserError, match="metrics.jsonl, line 4"):
        read_curves(broken)
    words = training(tmp_path / "c", [{"step": 1, "metrics": {"reward/score": "abc"}}])
    with pytest.raises(UserError, match="metrics.jsonl, line 1"):
        read_curves(words)
    with pytest.raises(UserError, match="metrics.jsonl"):
        read_curves(training(tmp_path / "d", []))
