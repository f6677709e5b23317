"""Real steps of GRPO on veRL, vLLM, Ray Serve and the sandboxed judge: FT, killed and resumed, then Cobalt."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support import ROOT, trajectory_record, write_lines

from cobalt.datasets.verl_rows import VerlRun, convert_multi_turn, convert_single_turn
from cobalt.trajectory.processing import ProcessingRun, process_trajectories

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]

SMALL = [
    "data.train_batch_size=4",
    "data.val_max_samples=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    "data.max_response_length=96",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
]
RIGHT, WRONG = (2, 2), (0, 0)


@contextlib.contextmanager
def training(method, data, model, output, *overrides):
    """A training by its script; whatever happens, nothing of it goes on running."""
    command = ["bash", f"scripts/train_grpo_{method}.sh", "--data_dir", data, "--model", model]
    command += ["--output_dir", output, *SMALL, *overrides]
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def metrics_of(output):
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records], [record["metrics"] for record in records]


def check_step(parts):
    assert -1 <= parts["reward/score"] <= 1 and 0 <= parts["reward/pass_rate"] <= 1
    judged = sum(value for name, value in parts.items() if name.startswith("reward/verdict_"))
    assert judged == pytest.approx(1 - parts["reward/no_code"]), "every program has a verdict for every test"
    assert parts["training/rollout_probs_diff_max"] < 1e-3, "vLLM and the actor are one policy"


@pytest.fixture(scope="module")
def folder(seed_model, tmp_path_factory):
    """Two trainings at the same time: `ft`, three steps, killed after the first and run again; `cobalt`, one step."""
    folder = tmp_path_factory.mktemp("training")
    policy = str(seed_model)
    world = seed_model.parent / "data"
    run = VerlRun(world / "train.jsonl", world / "dev.jsonl", folder / "single_turn", policy, 256, "pocket")
    convert_single_turn(run, "pocket")
    asyncio.run(make_partial_trajectories(folder, policy))
    ft = ("single_turn", folder / "single_turn", policy, folder / "ft", "trainer.total_training_steps=3")
    cobalt = ("multi_turn", folder / "multi_turn", policy, folder / "cobalt", "trainer.total_training_steps=1")
    before = set(Path("/tmp").glob("cobalt-ray-*"))
    with training(*cobalt) as process:
        kill_after_first_step(*ft)
        finish(process, folder / "cobalt")
    with training(*ft) as process:
        finish(process, folder / "ft")
    for left in set(Path("/tmp").glob("cobalt-ray-*")) - before:
        shutil.rmtree(left)  # the killed one's
    return folder


async def make_partial_trajectories(folder, policy):
    for split in ("train", "validation"):
        records = [trajectory_record(f"{split}{n}", [[WRONG, RIGHT, RIGHT], [WRONG, WRONG, WRONG]]) for n in range(2)]
        source = write_lines(folder / f"{split}.evaluation.jsonl", records)
        await process_trajectories(ProcessingRun(source, folder / f"{split}.jsonl", policy), None)
    rows = VerlRun(folder / "train.jsonl", folder / "validation.jsonl", folder / "multi_turn", policy, 1024, "pocket")
    convert_multi_turn(rows)


def kill_after_first_step(*arguments):
    metrics = arguments[3] / "metrics.jsonl"
    with training(*arguments) as process:
        deadline = time.monotonic() + 500
        while not metrics.exists() or '"step": 1' not in metrics.read_text():
            assert process.poll() is None and time.monotonic() < deadline, said_by(process, arguments[3])
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)  # the launcher, which bash has become: nobody tidies up
        process.wait(60)


def finish(process, output):
    process.wait(500)
    assert process.returncode == 0, said_by(process, output)


def said_by(process, output):
    process.terminate()
    log = output / "train.log"
    return process.stdout.read()[-4000:] + (log.read_text()[-4000:] if log.exists() else "")


def test_a_killed_training_goes_on_without_a_gap_or_a_double_step(folder):
    steps, metrics = metrics_of(folder / "ft")
    assert steps == [0, 1, 2, 3]
    for parts in metrics[1:]:
        check_step(parts)
        assert parts["actor/lr"] > 0
    assert 0 <= metrics[2]["val-core/pocket/acc/mean@1"] <= 1


def test_the_exported_policy_is_the_trained_one_in_its_own_precision(folder, seed_model):
    before, after = (load_file(model / "model.safetensors") for model in (seed_model, folder / "ft" / "model"))
    assert {name: (w.shape, w.dtype) for name, w in before.items()} == {n: (w.shape, w.dtype) for n, w in after.items()}
    assert any(not before[name].equal(after[name]) for name in before)
    assert "step 3" in (folder / "ft" / "model" / ".cobalt-export").read_text()
    assert json.loads((folder / "ft" / "model" / "config.json").read_text())["dtype"] == "float32"


def test_cobalt_trains_on_partial_trajectories_with_the_reward_of_improvement(folder):
    steps, metrics = metrics_of(folder / "cobalt")
    assert steps == [0, 1]
    check_step(metrics[1])
    assert "reward/improvement" in metrics[1]
    assert (folder / "cobalt" / "model" / "model.safetensors").exists()


def test_trainings_leave_no_process(folder):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in listed
