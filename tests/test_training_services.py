"""Real steps of GRPO on veRL, vLLM, Ray and the sandboxed judge: a run that is killed, goes on and is exported."""

import contextlib
import json
import subprocess
import time
from pathlib import Path

import pytest
from support import ROOT, alive, descendants

from cobalt.report.rollouts import read_rollouts
from cobalt.selection.verl_rows import SingleTurnRowsSettings, convert_single_turn
from cobalt.training import run_folder

pytestmark = [pytest.mark.services, pytest.mark.timeout(1200)]

SMALL = [
    "data.train_batch_size=4",
    "data.val_max_samples=4",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "cobalt.loss_agg=micro_batch",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    "data.max_response_length=96",
    "actor_rollout_ref.actor.optim.lr=1e-5",  # the handful of samples must not make the policy forget how to answer
    "algorithm.rollout_correction.bypass_mode=false",  # the actor's own probabilities, to compare
    "trainer.save_freq=1",
    "trainer.test_freq=2",
]
TWO_STEPS = ["trainer.total_training_steps=2", "cobalt.keep_checkpoints=1"]


@contextlib.contextmanager
def training(method, data, model, output, *overrides):
    """A training run by its script; whatever happens, none of its processes remains."""
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
    assert 0 <= parts["reward/equal_groups"] <= 1
    judged = sum(value for name, value in parts.items() if name.startswith("reward/verdict_"))
    assert judged == pytest.approx(1 - parts["reward/no_code"]), "every program has a verdict for every test"
    assert parts["training/rollout_probs_diff_max"] < 1e-3, "vLLM and the actor are one policy"


@pytest.fixture(scope="module")
def rows(seed_model, tmp_path_factory):
    """A folder with the rows of single-turn training."""
    folder = tmp_path_factory.mktemp("rows")
    world = seed_model.parent / "data"
    run = SingleTurnRowsSettings(
        train_file=world / "train.jsonl", validation_file=world / "dev.jsonl", local_dir=folder,
        model_name=str(seed_model), max_prompt_length=256, data_source="pocket", prompts="pocket",
    )  # fmt: skip
    convert_single_turn(run)
    return folder


@pytest.fixture(scope="module")
def ft(seed_model, rows, tmp_path_factory):
    """The folder of a single-turn training of two steps, killed after the first and begun again by the same command."""
    output = tmp_path_factory.mktemp("ft") / "run"
    arguments = ("single_turn", rows, seed_model, output, *TWO_STEPS)
    before = ray_folders()
    with training(*arguments) as process:
        deadline, metrics = time.monotonic() + 500, output / "metrics.jsonl"
        while not metrics.exists() or '"step": 1' not in metrics.read_text():
            assert process.poll() is None and time.monotonic() < deadline, said_by(process, output)
            time.sleep(0.1)
        processes = descendants(process.pid)
        process.kill()  # the launcher, which bash has become: nobody but watchers tidies up
        process.wait(60)
    deadline = time.monotonic() + 60
    while ray_folders() - before or any(map(alive, processes)):
        assert time.monotonic() < deadline, "a killed run leaves a process, or the folder of its Ray"
        time.sleep(0.1)
    with training(*arguments) as process:
        finish(process, output)
    assert ray_folders() == before
    return output


def ray_folders():
    """The folders of the private Rays of this machine; no other test with services makes one."""
    return set(Path("/tmp").glob("cobalt-ray-*"))


def finish(process, output):
    process.wait(500)
    assert process.returncode == 0, said_by(process, output)


def said_by(process, output):
    process.terminate()
    log = output / "train.log"
    return process.stdout.read()[-4000:] + (log.read_text()[-4000:] if log.exists() else "")


def test_training_steps_have_rewards_updates_and_validation(ft):
    steps, metrics = metrics_of(ft)
    assert steps == [0, 1, 2]
    for parts in metrics[1:]:
        check_step(parts)
    assert metrics[1]["actor/lr"] > 0
    assert 0 <= metrics[2]["val-core/pocket/acc/mean@1"] <= 1
    groups = read_rollouts(ft, 1)
    assert groups and all(abs(sum(s.rows[0].advantage for s in group.samples)) < 1e-3 for group in groups)
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(ft) not in listed, "training leaves no process"


def test_its_processes_say_what_they_do(ft):
    said = phases_of(ft)
    assert said[0].startswith("(TaskRunner pid="), said
    assert any("(WorkerDict pid=" in line and "micro-batch" in line for line in said), said


def phases_of(run):
    """The phase lines in the log of a training run."""
    log = run / "train.log"
    return [line for line in log.read_text().splitlines() if "[progress] " in line] if log.exists() else []


def test_the_papers_average_of_the_loss_weighs_responses_equally_in_micro_batches_of_one(ft):
    """A group's advantages add up to 0; so, before the first update, do the means of the loss over its responses."""
    first = metrics_of(ft)[1][1]
    assert first["critic/advantages/max"] > 0 and first["actor/grad_norm"] > 0
    assert first["response_length/max"] > first["response_length/min"], "otherwise every average would be 0"
    # The sums are in float32.
    assert first["actor/pg_loss"] == pytest.approx(0, abs=1e-5)


def test_the_exported_policy_is_the_trained_one_in_its_own_precision(ft, seed_model):
    from safetensors.torch import load_file

    before, after = (load_file(model / "model.safetensors") for model in (seed_model, ft / "model"))
    assert {name: (w.shape, w.dtype) for name, w in before.items()} == {n: (w.shape, w.dtype) for n, w in after.items()}
    assert any(not before[name].equal(after[name]) for name in before)
    assert "step 2" in (ft / "model" / ".cobalt-export").read_text()
    assert json.loads((ft / "model" / "config.json").read_text())["dtype"] == "float32"


def test_the_last_checkpoint_alone_is_kept_and_has_the_metrics_of_its_step(ft):
    assert run_folder.steps(ft) == [2]
    assert run_folder.missing_part(ft, 2) is None
    stored, reported = (
        {name: value for name, value in parts.items() if not any(word in name for word in ("timing", "perf/", "val-"))}
        for parts in (run_folder.saved_metrics(ft, 2), metrics_of(ft)[1][2])
    )
    assert stored == reported
