"""Offline training runs: killed, asked for again, without flash-attn, on two ranks, with steps without a response.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import write_lines
from test_offline_training import SETTINGS, data, group, train, weights_of, whole_run

__all__ = ["data", "whole_run"]  # fixtures

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif("COBALT_LONG_TESTS" not in os.environ, reason="COBALT_LONG_TESTS is not set"),
]


def test_a_finished_run_that_is_asked_for_again_stays_as_it_is(whole_run, data, seed_model):
    run, _ = whole_run
    before = (run / "metrics.jsonl").read_bytes()
    train(data, seed_model, run, *SETTINGS)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_run_that_is_killed_goes_on_from_its_checkpoint_to_the_same_weights(whole_run, data, seed_model, tmp_path):
    import torch

    run = shutil.copytree(whole_run[0], tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "global_step_6")
    shutil.rmtree(run / "model")
    assert len(train(data, seed_model, run, *SETTINGS[:2], "trainer.save_freq=1")) == 7
    expected, reached = weights_of(whole_run[0] / "model"), weights_of(run / "model")
    assert expected.keys() == reached.keys()
    assert all(torch.equal(expected[name], reached[name]) for name in expected)


def test_the_engine_without_flash_attn_trains_on_packed_sequences_as_the_engine_for_a_cpu_does(
    whole_run, data, seed_model, tmp_path
):
    """The code for GPUs where flash-attn is not installed, under FSDP2, against separate code for the same sums."""
    packed = ["model.external_lib=cobalt_verl.packed_sdpa", "model.use_remove_padding=true"]
    packed += ["model.enable_gradient_checkpointing=true", "trainer.total_training_steps=2"]
    metrics = train(data, seed_model, tmp_path / "run", "offline.kl=0.01", "offline.clip=0.2", *packed)
    before, *steps = zip(metrics, whole_run[1], strict=False)
    assert len(steps) == 2
    for pairs, kind in (([before], "validation"), (steps, "actor")):
        for reached, expected in pairs:
            names = [name for name in expected if name.startswith(kind)]
            assert names
            for name in names:
                if not name.startswith(("actor/perf", "actor/mfu")):
                    assert reached[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


def test_two_ranks_with_adapters_train_the_policy_that_is_exported(data, seed_model, tmp_path):
    import torch

    adapters = ["model.lora_rank=4", "model.lora_alpha=8", "trainer.n_gpus_per_node=2"]
    metrics = train(data, seed_model, tmp_path / "run", *adapters, "trainer.total_training_steps=2", estimator="sft")
    assert metrics[1]["training/responses"] == 8
    before, after = weights_of(seed_model), weights_of(tmp_path / "run" / "model")
    assert before.keys() == after.keys()
    changed = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed <= {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert "q_proj" in changed


def test_supervised_training_goes_on_where_a_rank_or_a_step_has_no_response(seed_model, tmp_path):
    import torch

    # Seven groups in steps of two: the fourth step ends one epoch and begins the next.
    pairs = [group(f"w{number}", [], ["0", "1"], contrast="any") for number in range(6)]
    write_lines(tmp_path / "train.jsonl", [*pairs, group("r", ["2", "3"], [], contrast="any")])
    settings = ["data.train_batch_size=2", "trainer.n_gpus_per_node=2", "trainer.total_epochs=2", "offline.kl=0.1"]
    write_lines(tmp_path / "validation.jsonl", [group("v", ["0"], ["1"])])
    first, *metrics = train(tmp_path, seed_model, tmp_path / "run", *settings, "--wandb", estimator="sft")
    assert {"validation/accepted_log_prob", "validation/other_log_prob"} <= first.keys()
    assert len(metrics) == 7 and sum(m["training/responses"] for m in metrics) == 4, "each epoch has every group"
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert [m["training/responses"] > 0 for m in metrics] == ["actor/loss" in m for m in metrics]
    before, after = weights_of(seed_model), weights_of(tmp_path / "run" / "model")
    assert not all(torch.equal(before[name], after[name]) for name in before)
