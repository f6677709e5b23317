"""Two real steps of GRPO on veRL, vLLM, Ray Serve and the sandboxed judge, and a third one after a rerun."""

import contextlib
import json
import os
import signal
import subprocess

import pytest
from support import ROOT

from cobalt.datasets.verl_rows import VerlRun, convert_single_turn

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        "COBALT_TRAINING_TESTS" not in os.environ,
        reason="two trainings take over seven minutes on 2 cores: set COBALT_TRAINING_TESTS=1 to run them",
    ),
]

SMALL = [
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "data.max_prompt_length=256",
    "data.max_response_length=96",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
]


def train(data, model, output, *overrides):
    """Train as the script does; whatever happens, nothing of it goes on running."""
    command = ["bash", "scripts/train_grpo_single_turn.sh", "--data_dir", data, "--model", model]
    command += ["--output_dir", output, *SMALL, *overrides]
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=700)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    assert process.returncode == 0, said[-4000:]


def metrics_of(output):
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return {(line := json.loads(text))["step"]: line["metrics"] for text in lines}, len(lines)


def test_training_steps_are_real_and_a_rerun_goes_on_where_it_stopped(seed_model, tmp_path):
    world = seed_model.parent / "data"
    run = VerlRun(world / "train.jsonl", world / "dev.jsonl", tmp_path / "data", str(seed_model), 256, "pocket")
    convert_single_turn(run, "pocket")
    output = tmp_path / "run"

    train(tmp_path / "data", seed_model, output, "trainer.total_training_steps=2")
    metrics, lines = metrics_of(output)
    assert list(metrics) == [0, 1, 2] and lines == 3
    for step in (1, 2):
        parts = metrics[step]
        assert -1 <= parts["reward/score"] <= 1 and 0 <= parts["reward/pass_rate"] <= 1
        judged = sum(value for name, value in parts.items() if name.startswith("reward/verdict_"))
        assert judged == pytest.approx(1 - parts["reward/no_code"]), "every program has a verdict for every test"
        assert parts["training/rollout_probs_diff_max"] < 1e-3
        assert parts["actor/lr"] == pytest.approx(3e-4)
    assert 0 <= metrics[2]["val-core/pocket/acc/mean@1"] <= 1

    from safetensors.torch import load_file

    before, after = (load_file(folder / "model.safetensors") for folder in (seed_model, output / "model"))
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in before), "the exported policy is the trained one"

    train(tmp_path / "data", seed_model, output, "trainer.total_training_steps=3")
    metrics, lines = metrics_of(output)
    assert list(metrics) == [0, 1, 2, 3] and lines == 4
    assert "step 3" in (output / "model" / ".cobalt-export").read_text()
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(output) not in left
