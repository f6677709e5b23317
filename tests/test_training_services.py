"""Real steps of GRPO on veRL, vLLM, Ray Serve and the sandboxed judge: FT, killed and resumed, then Cobalt."""

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

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]

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


def train(method, data, model, output, *overrides):
    with training(method, data, model, output, *overrides) as process:
        said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said[-4000:] + (output / "train.log").read_text()[-4000:]


def metrics_of(output):
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [record["step"] for record in records], [record["metrics"] for record in records]


def processes_of(output):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(output) in line]


def check_step(parts):
    assert -1 <= parts["reward/score"] <= 1 and 0 <= parts["reward/pass_rate"] <= 1
    judged = sum(value for name, value in parts.items() if name.startswith("reward/verdict_"))
    assert judged == pytest.approx(1 - parts["reward/no_code"]), "every program has a verdict for every test"
    assert parts["training/rollout_probs_diff_max"] < 1e-3, "vLLM and the actor are one policy"


def changed(before, after):
    before, after = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert before.keys() == after.keys()
    assert {name: before[name].dtype for name in before} == {name: after[name].dtype for name in before}
    return any(not before[name].equal(after[name]) for name in before)


@pytest.fixture(scope="module")
def ft(seed_model, tmp_path_factory):
    """The folder of a single-turn training of three steps, killed after the first one and run again."""
    folder = tmp_path_factory.mktemp("training")
    world = seed_model.parent / "data"
    run = VerlRun(world / "train.jsonl", world / "dev.jsonl", folder / "data", str(seed_model), 256, "pocket")
    convert_single_turn(run, "pocket")
    arguments = ("single_turn", folder / "data", seed_model, folder / "ft", "trainer.total_training_steps=3")
    metrics = folder / "ft" / "metrics.jsonl"
    before = set(Path("/tmp").glob("cobalt-ray-*"))
    with training(*arguments) as process:
        deadline = time.monotonic() + 400
        while not metrics.exists() or '"step": 1' not in metrics.read_text():
            assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()[-4000:]
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)  # the launcher (bash has become it): nobody tidies up
        process.wait(60)
    for left in set(Path("/tmp").glob("cobalt-ray-*")) - before:
        shutil.rmtree(left, ignore_errors=True)
    train(*arguments)
    return folder / "ft"


def test_a_killed_training_goes_on_without_a_gap_or_a_double_step(ft):
    steps, metrics = metrics_of(ft)
    assert steps == [0, 1, 2, 3]
    for parts in metrics[1:]:
        check_step(parts)
        assert parts["actor/lr"] > 0
    assert 0 <= metrics[2]["val-core/pocket/acc/mean@1"] <= 1


def test_the_exported_policy_is_the_trained_one_in_its_own_precision(ft, seed_model):
    assert changed(seed_model, ft / "model")
    assert "step 3" in (ft / "model" / ".cobalt-export").read_text()
    assert json.loads((ft / "model" / "config.json").read_text())["dtype"] == "float32"


async def test_cobalt_trains_from_the_exported_policy_on_partial_trajectories(ft, tmp_path):
    policy = str(ft / "model")
    for split in ("train", "validation"):
        records = [trajectory_record(f"{split}{n}", [[WRONG, RIGHT, RIGHT], [WRONG, WRONG, WRONG]]) for n in range(2)]
        source = write_lines(tmp_path / f"{split}.evaluation.jsonl", records)
        await process_trajectories(ProcessingRun(source, tmp_path / f"{split}.jsonl", policy), None)
    rows = VerlRun(tmp_path / "train.jsonl", tmp_path / "validation.jsonl", tmp_path / "rows", policy, 1024, "pocket")
    convert_multi_turn(rows)
    train("multi_turn", tmp_path / "rows", policy, tmp_path / "run", "trainer.total_training_steps=1")
    steps, metrics = metrics_of(tmp_path / "run")
    assert steps == [0, 1]
    check_step(metrics[1])
    assert "reward/improvement" in metrics[1]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert processes_of(tmp_path) == []
