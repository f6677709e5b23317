"""Training runs of minutes: a hung engine, Cobalt after FT, both online methods, and the page about extending.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import ROOT, trajectory_record, write_lines
from test_extending import checkout, in_checkout, write_contest
from test_training import printed, world
from test_training_services import (
    TWO_STEPS,
    check_step,
    finish,
    ft,
    metrics_of,
    phases_of,
    rows,
    said_by,
    training,
)

from cobalt.selection.processing import ProcessingSettings, select_prompts
from cobalt.selection.verl_rows import (
    MultiTurnRowsSettings,
    SingleTurnRowsSettings,
    convert_multi_turn,
    convert_single_turn,
)

__all__ = ["checkout", "ft", "rows", "world"]  # fixtures

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(1200),
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]

SMALL = [
    "data.train_batch_size=4",
    "data.val_max_samples=4",
    "data.max_response_length=96",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.optim.lr=1e-5",
    "algorithm.rollout_correction.bypass_mode=false",  # the actor's own probabilities, to compare
    "trainer.total_training_steps=1",
    "trainer.save_freq=1",
    "trainer.test_freq=1",
]


@pytest.fixture(scope="module")
def episode_rows(seed_model, tmp_path_factory):
    """Rows of episodes by the pocket world's own rules."""
    folder, world = tmp_path_factory.mktemp("rows"), seed_model.parent / "data"
    convert_single_turn(
        SingleTurnRowsSettings(
            train_file=world / "train.jsonl", validation_file=world / "dev.jsonl", local_dir=folder,
            model_name=str(seed_model), max_prompt_length=512, data_source="pocket", prompts="pocket", episodes=True,
            enable_thinking=True, truncated_thinking="drop",
        )
    )  # fmt: skip
    return folder


def test_a_run_whose_engine_stops_is_ended_and_the_message_says_where(seed_model, rows, tmp_path):
    output = tmp_path / "run"
    with training("single_turn", rows, seed_model, output, "--hang_limit=120") as process:
        deadline = time.monotonic() + 500
        while not any(re.search(r"step [1-9]", line) for line in phases_of(output)):
            assert process.poll() is None and time.monotonic() < deadline, said_by(process, output)
            time.sleep(0.05)
        engine = descendant(process.pid, "EngineCore")
        os.kill(engine, signal.SIGSTOP)
        process.wait(400)
        said = process.stdout.read()
    assert process.returncode == 1, said
    # The engine may have generated the samples before it was stopped; then it does not take the next weights.
    message = re.search(r"hung \(step \d+ of 12, ([a-z ]+).*--hang_limit", " ".join(said.split()))
    assert message and message[1] in ("generate", "weights to the engine"), said


def descendant(pid, name):
    """The process of a name that another one has started, or one of those."""
    import psutil

    return next(
        child.pid for child in psutil.Process(pid).children(recursive=True) if name in " ".join(child.cmdline())
    )


def rewards(parts):
    return {
        name: value
        for name, value in parts.items()
        if name.startswith(("reward/", "val-core/")) and "seconds" not in name
    }


def test_a_run_that_was_killed_has_the_rewards_of_one_that_was_not(ft, seed_model, rows, tmp_path):
    output = tmp_path / "run"
    with training("single_turn", rows, seed_model, output, *TWO_STEPS) as process:
        finish(process, output)
    for one, other in zip(metrics_of(output)[1], metrics_of(ft)[1], strict=True):
        assert rewards(one) == rewards(other)


async def test_cobalt_trains_the_exported_policy_on_partial_trajectories(ft, rows, tmp_path):
    from pyarrow import parquet

    policy = str(ft / "model")
    start = [row["prompt"] for row in parquet.read_table(rows / "train.parquet").slice(0, 2).to_pylist()]
    right, wrong, program = (2, 2), (0, 0), "```python\nprint(1)\n```"
    turn = [{"role": "assistant", "content": program}, {"role": "user", "content": "The program fails a test."}]
    for split in ("train", "validation"):
        records = [
            trajectory_record(
                f"{split}{n}",
                [[wrong, right, right], [wrong, wrong, wrong]],
                conversations=[start[n] + turn * 3, start[n] + turn * 3],
            )
            for n in range(2)
        ]
        source = write_lines(tmp_path / f"{split}.evaluation.jsonl", records)
        await select_prompts(ProcessingSettings(source, tmp_path / f"{split}.jsonl", policy), None)
    partial = MultiTurnRowsSettings(
        train_file=tmp_path / "train.jsonl", validation_file=tmp_path / "validation.jsonl", local_dir=tmp_path / "rows",
        model_name=policy, max_prompt_length=1024, data_source="pocket",
    )  # fmt: skip
    convert_multi_turn(partial)
    output = tmp_path / "run"
    # The other average, of this scale; and rewards in processes of veRL's own.
    overrides = ["trainer.total_training_steps=1", "cobalt.loss_agg=mini_batch", "reward.num_workers=1"]
    with training("multi_turn", tmp_path / "rows", policy, output, *overrides) as process:
        finish(process, output)
    steps, metrics = metrics_of(output)
    assert steps == [0, 1]
    check_step(metrics[1])
    assert "reward/improvement" in metrics[1]
    assert (output / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("method", ["grpo", "verpo"])
def test_a_training_step_is_real(method, episode_rows, seed_model, tmp_path):
    output = tmp_path / "run"
    command = ["bash", f"scripts/train_{method}_mt.sh", "--data_dir", episode_rows, "--model", seed_model]
    command += ["--output_dir", output, *SMALL]
    finished = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=600)
    log = output / "train.log"
    assert finished.returncode == 0, finished.stderr[-2000:] + (log.read_text()[-4000:] if log.exists() else "")
    metrics = [json.loads(line)["metrics"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    step = metrics[1]
    assert -1 <= step["reward/score"] <= 1 and step["reward/rows"] >= 1
    assert step["reward/turns"] == {"grpo": 3, "verpo": pytest.approx(4, abs=3)}[method]
    assert 0 <= step["reward/equal_groups"] <= 1
    assert ("reward/equal_verpo_groups" in step) == (method == "verpo")
    assert step["training/rollout_probs_diff_max"] < 1e-3, "vLLM and the actor are one policy"
    assert 0 <= step["val-core/pocket/acc/mean@1"] <= 1
    assert (output / "model" / "model.safetensors").exists()


def test_a_training_step_with_the_pages_data_loop_and_estimator(checkout, seed_model, tmp_path):
    rows = write_contest(checkout, tmp_path, seed_model)
    choices = ["--data", "contest", "--rollout", "second_chance", "--estimator", "median_baseline"]
    finished = in_checkout(
        checkout, "-m", "cobalt.training", *choices, "--data_dir", rows, "--model", seed_model, "--output_dir",
        tmp_path / "run", "data.train_batch_size=4", "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1", "data.max_response_length=96",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1",
        "trainer.total_training_steps=1", "trainer.save_freq=1",
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    metrics = [json.loads(line)["metrics"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[1]["critic/rewards/mean"] <= 1
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_verl_accepts_a_run_on_one_gpu_with_an_adapter(world, tmp_path):
    shown = printed(world, tmp_path, "grpo_multi_turn", "--profile", "gpu-1", "actor_rollout_ref.model.lora_rank=8")
    assert {"adv_estimator: grpo", "lora_rank: 8"} <= shown
