"""A training step of TRL with the recipe's reward, on the real judge."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import square_problem, write_lines
from test_recipes import RECIPES, with_recipes

pytestmark = pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set")


@with_recipes
def test_trl_trains_a_step_on_the_judges_rewards(seed_model, tmp_path):
    problems = write_lines(tmp_path / "problems.jsonl", [square_problem(number) for number in range(4)])
    flags = ["--output_dir", tmp_path / "run", "--max_steps", "1", "--per_device_train_batch_size", "4"]
    flags += ["--num_generations", "4", "--max_completion_length", "32", "--report_to", "none", "--logging_steps", "1"]
    flags += ["--use_cpu", "--bf16", "false"]
    command = [sys.executable, RECIPES / "trl_reward.py", problems, seed_model, *flags]
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "must have a </think>" in finished.stdout  # the seed model's chat template has the tag
    state = json.loads((tmp_path / "run" / "checkpoint-1" / "trainer_state.json").read_text())
    [reward] = [entry["rewards/code_reward/mean"] for entry in state["log_history"] if "loss" in entry]
    assert -1 <= reward <= 1
