"""Additions to veRL, on small tensors and files: average of the loss, export, the CPU build's name, metrics.

veRL itself is imported, and nothing of it is replaced but what a test says.
"""

import json
from pathlib import Path

import pytest
import torch
from chat_tokenizers import save_policy
from support import composed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig

from cobalt.stage.errors import UserError

pytestmark = pytest.mark.slow

# Which tokens of each response count, with a hole (another turn's tokens) and a response of which nothing counts.
MASKS = [[1], [1] * 9, [1, 1], [1] * 7, [1, 1, 0, 0, 1], [1] * 6, [0, 0], [1] * 3]
SAMPLES = len(MASKS)
DRAW = torch.Generator().manual_seed(0)
ADVANTAGES = [torch.randn(len(mask), generator=DRAW, dtype=torch.float64) for mask in MASKS]


def token_mean(samples):
    """The mean of the loss of tokens that count, which is less the advantage where a policy has not moved yet."""
    losses, mask = (torch.cat([torch.as_tensor(rows[s]) for s in samples]) for rows in (ADVANTAGES, MASKS))
    return -(losses * mask).sum() / mask.sum().clamp(min=1)


def reference(mode, micro):
    """The loss of the mini-batch by the words of the two versions of veRL."""
    if mode == "mini_batch":
        return token_mean(range(SAMPLES))
    starts = range(0, SAMPLES, micro)
    return sum(token_mean(range(start, start + micro)) for start in starts) / len(starts)


def nested(rows):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def verl_loss(mode, micro, ranks):
    """The same by veRL's own micro-batches and loss, added up as its engine does, averaged over ranks as FSDP does."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.config import FSDPActorConfig
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.utils.losses import ppo_loss

    from cobalt_verl.losses.loss_agg import micro_batch_loss

    sizes = {"ppo_micro_batch_size_per_gpu": micro, "ppo_mini_batch_size": SAMPLES}
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, **sizes)
    loss, total = ppo_loss if mode == "mini_batch" else micro_batch_loss, 0
    for rank in range(ranks):
        own = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
        masks, advantages = MASKS[own], ADVANTAGES[own]
        before = nested([torch.zeros_like(values) for values in advantages])
        now = nested([torch.zeros(1 + len(mask), dtype=torch.float64) for mask in masks])  # with the prompt's token
        fields = {"responses": nested(masks), "response_mask": nested(masks), "advantages": nested(advantages)}
        fields["input_ids"] = nested([[1, *mask] for mask in masks])
        fields |= {"prompts": nested([[1] for _ in masks]), "old_log_probs": before, "log_probs": now}
        data = TensorDict(fields, batch_size=len(masks))
        tensordict_utils.assign_non_tensor(
            data, micro_batch_size_per_gpu=micro, global_batch_size=SAMPLES, dp_size=ranks,
            batch_num_tokens=sum(map(sum, MASKS)), use_dynamic_bsz=False,
        )  # fmt: skip
        for part in prepare_micro_batches(data)[0]:
            total += loss(config=config, model_output={"log_probs": part["log_probs"]}, data=part)[0] / ranks
    return total


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("mode", ["mini_batch", "micro_batch"])
def test_each_average_of_the_loss_is_its_definition_in_float64(mode, micro, ranks):
    ours = verl_loss(mode, micro, ranks)
    assert ours.dtype == torch.float64
    assert ours.item() == pytest.approx(reference(mode, micro).item(), rel=1e-12)


@pytest.mark.parametrize(("ranks", "phase"), [(2, "advantages"), (1, "advantages"), (2, "old_log_probs")])
def test_ranks_that_update_together_take_their_largest_micro_batches_first(monkeypatch, ranks, phase):
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.engine import utils

    from cobalt_verl.progress import prepare_micro_batches

    data = TensorDict({"input_ids": nested(MASKS), phase: nested(ADVANTAGES)}, batch_size=SAMPLES)
    tensordict_utils.assign_non_tensor(data, micro_batch_size_per_gpu=2, use_dynamic_bsz=False)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    own, taken = (
        [part["input_ids"].values().numel() for part in prepare(data)[0]]
        for prepare in (utils.prepare_micro_batches, prepare_micro_batches)
    )
    assert own != sorted(own, reverse=True)
    assert taken == (sorted(own, reverse=True) if (ranks, phase) == (2, "advantages") else own)


@pytest.mark.parametrize(
    "override", ["algorithm.adv_estimator=nothing_here", "actor_rollout_ref.actor.policy_loss.loss_mode=nothing_here"]
)
def test_the_dry_run_looks_up_the_names_in_the_configuration(override, tmp_path):
    from cobalt_verl.main import check_names

    check_names(composed(tmp_path, "m", tmp_path))
    with pytest.raises(ValueError, match="nothing_here"):
        check_names(composed(tmp_path, "m", tmp_path, override))


def test_the_wait_for_rewards_is_from_the_last_response_to_the_last_verdict():
    from cobalt_verl.scoring import VERDICT_AT
    from cobalt_verl.trainers.sync import reward_metrics

    # Responses ended at 100, 104 and 103; the first verdict took longest.
    ends = [(1.0, 9.0, 109.0), (0.0, 1.0, 105.0), (0.5, 0.5, 103.5)]
    parts = [{"score": score, "judge_seconds": seconds, VERDICT_AT: end} for score, seconds, end in ends]
    shown = {"reward/score": 0.5, "reward/equal_groups": 0.0, "reward/judge_seconds": 3.5}
    assert reward_metrics(parts, ["u", "u", "u"]) == shown | {"timing_s/reward_wait": 5.0}
    without = [{name: value for name, value in part.items() if name != VERDICT_AT} for part in parts]
    assert set(reward_metrics(without, "abc")) == shown.keys()


def test_a_group_is_equal_if_all_samples_of_its_prompt_have_one_reward():
    from cobalt_verl.trainers.sync import reward_metrics

    scores = {"u": [0.2, 0.2, 0.2], "v": [0.2, 0.2001, 0.2], "w": [1.0, 1.0, 1.0], "x": [-0.1, 1.0, 0.0]}
    # Samples of a step are in no order.
    rows = [(prompt, of_prompt[n]) for n in range(3) for prompt, of_prompt in scores.items()]
    metrics = reward_metrics([{"score": score} for _, score in rows], [prompt for prompt, _ in rows])
    assert metrics["reward/equal_groups"] == 0.5
    assert "reward/equal_groups" not in reward_metrics([{"acc": 1.0}], ["u"])


# --- the export


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_export_keeps_every_weight_as_it_was_trained(tmp_path, dtype):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from cobalt_verl.merge import main

    checkpoint, folder = tmp_path / "actor", tmp_path / "model"
    (checkpoint / "huggingface").mkdir(parents=True)
    config = AutoConfig.from_pretrained(save_policy(checkpoint / "huggingface", "qwen3", tied=True))
    weights = AutoModelForCausalLM.from_config(config).to(dtype).state_dict()
    torch.save(weights, checkpoint / "model_world_size_1_rank_0.pt")
    (checkpoint / "fsdp_config.json").write_text('{"world_size": 1}')
    main(str(checkpoint), str(folder))
    merged = load_file(folder / "model.safetensors")
    assert merged and all(weights[name].equal(tensor) and tensor.dtype == dtype for name, tensor in merged.items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(("device", "rank"), [("cpu", 1), ("cuda", 0)])
def test_a_checkpoint_that_runs_code_is_refused_and_does_not_run(tmp_path, device, rank):
    """On either device the merger runs on the CPU: our own for policies of a CPU, and veRL's for those of GPUs."""
    from cobalt.training.export import export

    run = tmp_path / "run"
    checkpoint = run / "checkpoints" / "global_step_2" / "actor"
    checkpoint.mkdir(parents=True)
    (run / "config.yaml").write_text(f"trainer: {{device: {device}}}\n")
    (checkpoint / "fsdp_config.json").write_text('{"world_size": 2}')
    AutoConfig.for_model("qwen3", num_hidden_layers=1, architectures=["Qwen3ForCausalLM"]).save_pretrained(
        checkpoint / "huggingface"
    )
    trap = tmp_path / "ran"
    mesh = DeviceMesh("cpu", torch.arange(2), mesh_dim_names=("fsdp",), _init_backend=False, _rank=0)
    shard = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)], run_check=False)
    for at in range(2):
        weights = {"a": shard, "z": Malicious(trap) if at == rank else torch.ones(2)}
        torch.save(weights, checkpoint / f"model_world_size_2_rank_{at}.pt")
    with pytest.raises(UserError, match=f"{checkpoint} ") as refused:
        export(run, 2, tmp_path / "model")
    assert "\n" not in str(refused.value)
    assert not trap.exists() and not (tmp_path / "model").exists()
    torch.load(checkpoint / f"model_world_size_2_rank_{rank}.pt", weights_only=False)
    assert trap.exists(), "the trap itself must work, or this test says nothing"


# --- groups of equal rewards


def test_groups_whose_rewards_do_not_differ_are_dropped_counted_and_replaced(monkeypatch):
    """Two of the first four prompts have equal rewards, one of them all 1; the prompts after them differ."""
    from verl.trainer.ppo.v1 import replay_buffer as verls

    from cobalt_verl.trainers import replay_buffer

    equal = {0: 1.0, 2: -0.5}
    rows, asked = {}, []

    def finish(prompts):
        for prompt in prompts:
            rows[f"u{prompt}"] = {"is_prompt": True, "global_steps": 1, "status": "finished"}
            rows.update({f"u{prompt}_{sample}_0": {"global_steps": 1} for sample in range(2)})

    def refill(count):
        asked.append(count)
        finish(range(4 + sum(asked[:-1]), 4 + sum(asked)))

    def scores(keys, partition_id, select_fields):
        values = [equal.get(int(key.split("_")[0][1:]), float(key.split("_")[1])) for key in keys]
        return {"rm_scores": [torch.tensor([0.0, value]) for value in values]}

    monkeypatch.setattr(verls.tq, "kv_list", lambda: {"train": dict(rows)})
    monkeypatch.setattr(verls.tq, "kv_batch_get", scores)
    monkeypatch.setattr(verls.tq, "kv_clear", lambda partition_id, keys: [rows.pop(key, None) for key in keys])
    buffer = replay_buffer.StrictReplayBuffer(
        trainer_mode="sync", trainer_config=None, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs=None, refill_fn=refill, filter_groups_metric="reward", train_batch_size=4, gen_batch_size=1,
    )  # fmt: skip
    finish(range(4))
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=4)
    assert len(batch.keys) == 8
    assert not {"u0", "u2"} & {key.split("_")[0] for key in batch.keys}
    assert metrics["training/filter_groups/evicted_samples"] == 2
    assert asked == [4]  # veRL asks for twice as many as it has dropped
    assert metrics["training/filter_groups/discarded_surplus_samples"] == 2
