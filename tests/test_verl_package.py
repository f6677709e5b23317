"""What is added to veRL, on small tensors and files: average of the loss, export, the CPU build's name, metrics.

veRL itself is imported, and nothing of it is replaced but what a test says.
"""

import json
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from transformers import AutoConfig

from cobalt.stage.errors import UserError

pytestmark = pytest.mark.slow

# Lengths of prompts, and which tokens of each response count: hand-made, with a hole (another turn's tokens) and a
# response of which nothing counts.
PROMPTS = [2, 3, 1, 4, 2, 2, 1, 3]
MASKS = [[1], [1] * 9, [1, 1], [1] * 7, [1, 1, 0, 0, 1], [1] * 6, [0, 0], [1] * 3]
SAMPLES = len(MASKS)
CLIP_LOW, CLIP_HIGH, KL_WEIGHT, ENTROPY_WEIGHT = 0.2, 0.4, 1e-4, 1e-3


@pytest.fixture(scope="module")
def tokens():
    """The inputs of the loss for each sample and response token, in float64."""
    draw = torch.Generator().manual_seed(0)

    def values(scale):
        return [scale * torch.randn(len(mask), generator=draw, dtype=torch.float64) for mask in MASKS]

    now = [-1 + value for value in values(0.3)]
    advantages = [value[:1].expand(len(value)).clone() for value in values(1.0)]
    return {
        "log_probs": now, "old_log_probs": [a + b for a, b in zip(now, values(0.3), strict=True)],
        "ref_log_prob": [a + b for a, b in zip(now, values(0.3), strict=True)], "advantages": advantages,
        "entropy": [value.abs() for value in values(1.0)],
    }  # fmt: skip


def token_losses(tokens, sample):
    """The paper's loss of each token of a sample, written out: clipped policy loss, entropy, KL of type "mse"."""
    now, old, ref = (tokens[name][sample] for name in ("log_probs", "old_log_probs", "ref_log_prob"))
    advantage, ratio = tokens["advantages"][sample], (now - old).exp()
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    policy = torch.maximum(-advantage * ratio, -advantage * clipped)
    policy = torch.where(advantage < 0, torch.minimum(policy, -advantage * 3.0), policy)
    return policy - ENTROPY_WEIGHT * tokens["entropy"][sample] + KL_WEIGHT * 0.5 * (now - ref) ** 2


def token_mean(tokens, samples):
    losses = torch.cat([token_losses(tokens, sample) for sample in samples])
    mask = torch.cat([torch.tensor(MASKS[sample], dtype=torch.float64) for sample in samples])
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def reference(tokens, mode, micro):
    """The loss of the mini-batch by the words of the two versions of veRL."""
    if mode == "mini_batch":
        return token_mean(tokens, range(SAMPLES))
    starts = range(0, SAMPLES, micro)
    return sum(token_mean(tokens, range(start, start + micro)) for start in starts) / len(starts)


def verl_loss(tokens, mode, micro, ranks):
    """The same by veRL's own micro-batches and loss, added up as its engine does, averaged over ranks as FSDP does."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.config import FSDPActorConfig
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.utils.losses import ppo_loss

    from cobalt_verl.losses.loss_agg import micro_batch_loss

    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=micro, ppo_mini_batch_size=SAMPLES,
        clip_ratio_low=CLIP_LOW, clip_ratio_high=CLIP_HIGH, entropy_coeff=ENTROPY_WEIGHT,
        use_kl_loss=True, kl_loss_coef=KL_WEIGHT, kl_loss_type="mse",
    )  # fmt: skip
    loss = ppo_loss if mode == "mini_batch" else micro_batch_loss
    of_ranks = []
    for rank in range(ranks):
        samples = range(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)

        def nested(values, samples=samples):
            return torch.nested.as_nested_tensor([values[sample] for sample in samples], layout=torch.jagged)

        # A model's output stands one place before the token that it is about, in the whole sequence.
        def whole(name):
            return nested([
                torch.cat([torch.zeros(prompt - 1, dtype=torch.float64), values, torch.zeros(1, dtype=torch.float64)])
                for prompt, values in zip(PROMPTS, tokens[name], strict=True)
            ])  # fmt: skip

        fields = {name: nested(tokens[name]) for name in ("old_log_probs", "ref_log_prob", "advantages")}
        masks = nested([torch.tensor(mask) for mask in MASKS])
        data = TensorDict(
            {"prompts": nested([torch.ones(n, dtype=torch.int64) for n in PROMPTS]), "responses": masks}
            | {"response_mask": masks, "log_probs": whole("log_probs"), "entropy": whole("entropy")} | fields,
            batch_size=[len(samples)],
        )  # fmt: skip
        tensordict_utils.assign_non_tensor(
            data, use_dynamic_bsz=False, micro_batch_size_per_gpu=micro, global_batch_size=SAMPLES, dp_size=ranks,
            batch_num_tokens=sum(map(sum, MASKS)),
        )  # fmt: skip
        parts, _ = prepare_micro_batches(data)
        of_ranks.append(
            sum(
                loss(config=config, model_output={n: part[n] for n in ("log_probs", "entropy")}, data=part)[0]
                for part in parts
            )
        )
    return sum(of_ranks) / ranks


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("mode", ["mini_batch", "micro_batch"])
def test_each_average_of_the_loss_is_its_definition_in_float64(tokens, mode, micro, ranks):
    ours = verl_loss(tokens, mode, micro, ranks)
    assert ours.dtype == torch.float64
    assert ours.item() == pytest.approx(reference(tokens, mode, micro).item(), rel=1e-12)


def test_the_two_averages_differ_and_agree_for_one_micro_batch(tokens):
    assert reference(tokens, "micro_batch", SAMPLES) == reference(tokens, "mini_batch", SAMPLES)
    values = [reference(tokens, mode, micro).item() for mode, micro in [("mini_batch", 8), ("micro_batch", 1)]]
    assert abs(values[0] - values[1]) > 1e-2


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.adv_estimator=no_such_estimator",
        "actor_rollout_ref.actor.policy_loss.loss_mode=no_such_loss",
    ],
)
def test_the_dry_run_looks_up_the_names_in_the_configuration(override, tmp_path):
    from cobalt.training.configuration import TrainingSettings, compose
    from cobalt_verl.main import check_names

    check_names(compose(TrainingSettings(tmp_path, "m", tmp_path)))
    with pytest.raises(ValueError, match=override.rpartition("=")[2]):
        check_names(compose(TrainingSettings(tmp_path, "m", tmp_path, overrides=(override,))))


def test_the_wait_for_rewards_is_from_the_last_response_to_the_last_verdict():
    from cobalt_verl.scoring import VERDICT_AT
    from cobalt_verl.trainers.sync import reward_metrics

    # Responses ended at 100, 104 and 103; the first verdict took longest.
    parts = [
        {"score": score, "judge_seconds": seconds, VERDICT_AT: end}
        for score, seconds, end in [(1.0, 9.0, 109.0), (0.0, 1.0, 105.0), (0.5, 0.5, 103.5)]
    ]
    assert reward_metrics(parts, ["u", "u", "u"]) == {
        "reward/score": 0.5,
        "reward/equal_groups": 0.0,
        "reward/judge_seconds": 3.5,
        "timing_s/reward_wait": 5.0,
    }
    without = [{name: value for name, value in part.items() if name != VERDICT_AT} for part in parts]
    assert set(reward_metrics(without, "abc")) == {"reward/score", "reward/equal_groups", "reward/judge_seconds"}


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
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from cobalt.pocket.tokenizer import learn_tokenizer
    from cobalt_verl.merge import main

    checkpoint, folder = tmp_path / "actor", tmp_path / "model"
    config = Qwen3Config(
        vocab_size=400, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(checkpoint / "huggingface")
    learn_tokenizer(["a problem 0 1"], vocabulary=400).save_pretrained(checkpoint / "huggingface")
    weights = Qwen3ForCausalLM(config).to(dtype).state_dict()
    torch.save(weights, checkpoint / "model_world_size_1_rank_0.pt")
    (checkpoint / "fsdp_config.json").write_text('{"world_size": 1}')
    main(str(checkpoint), str(folder))
    merged = load_file(folder / "model.safetensors")
    assert merged and all(weights[name].equal(tensor) and tensor.dtype == dtype for name, tensor in merged.items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    assert torch.ones(1).bfloat16().dtype == torch.bfloat16


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
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
    with pytest.raises(UserError, match="more than weights") as refused:
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

    def clear(partition_id, keys):
        for key in keys:
            rows.pop(key, None)

    monkeypatch.setattr(verls.tq, "kv_list", lambda: {"train": dict(rows)})
    monkeypatch.setattr(verls.tq, "kv_batch_get", scores)
    monkeypatch.setattr(verls.tq, "kv_clear", clear)
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
