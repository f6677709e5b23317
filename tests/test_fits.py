"""The estimate of memory: exact for what FSDP2 keeps, near what a pass allocates, and what cannot fit is refused."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from support import ROOT

pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")

import torch
from omegaconf import OmegaConf

from cobalt.stage.errors import UserError
from cobalt.training import activations, fits, states
from cobalt.training.activations import MicroBatch, measure
from cobalt.training.configuration import TrainingSettings, compose, process_environment

pytestmark = pytest.mark.slow

GIB = 2**30
LARGE = {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 12288}
SMALL = {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with the configurations of Qwen3-8B and Qwen3-0.6B, by their published sizes."""
    from transformers import Qwen3Config

    folder = tmp_path_factory.mktemp("models")
    shared = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960}
    for name, sizes, tied in (("8B", LARGE, False), ("0.6B", SMALL, True)):
        Qwen3Config(
            architectures=["Qwen3ForCausalLM"], tie_word_embeddings=tied, **shared, **sizes
        ).save_pretrained(folder / name)  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def no_gpu_of_this_machine(monkeypatch):
    monkeypatch.setattr(fits, "visible_gpus", list)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def paper(model, *overrides, data="partial_trajectories", rollout="single_turn"):
    settings = TrainingSettings(
        model.parent, str(model), model.parent / "out", data=data, rollout=rollout, scale="paper", overrides=overrides
    )
    return compose(settings)


def found(config):
    errors, notes = [], []
    fits.check_fits(config, errors, notes)
    return errors, notes


# --- against what is really allocated

TINY = {
    "vocab_size": 96, "hidden_size": 96, "intermediate_size": 257, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "max_position_embeddings": 1024,
}  # fmt: skip
RANKS = [
    "trainer.n_gpus_per_node=2",
    "data.max_prompt_length=256",
    "data.max_response_length=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
]
VERL = ["actor_rollout_ref.model.external_lib=null"]  # its own code, which pads
PACKED = [
    "actor_rollout_ref.model.external_lib=cobalt_verl.packed_sdpa",
    "actor_rollout_ref.model.use_remove_padding=true",
]
BF16 = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing=true"


def tiny_policy(folder, tied):
    from tokenizers import Tokenizer, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config

    vocabulary = {chr(32 + index): index for index in range(95)} | {"<unk>": 95}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="~", pad_token="~"
    ).save_pretrained(folder)
    AutoModelForCausalLM.from_config(Qwen3Config(tie_word_embeddings=tied, **TINY)).save_pretrained(folder)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("overrides", "tied"),
    [(VERL, False), ([*PACKED, BF16, CHECKPOINTING, "actor_rollout_ref.model.lora_rank=8"], True)],
    ids=["padded, 32 bits", "packed, 16 bits, adapters, checkpointing, tied embeddings"],
)
def test_two_ranks_keep_what_is_estimated_and_allocate_a_tenth_more_or_less(tmp_path, overrides, tied):
    tiny_policy(tmp_path / "model", tied)
    settings = TrainingSettings(tmp_path, str(tmp_path / "model"), tmp_path / "o", overrides=(*RANKS, *overrides))
    config = compose(settings)
    OmegaConf.resolve(config)
    OmegaConf.save(config, tmp_path / "config.yaml")
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    one_thread = {"OMP_NUM_THREADS": "1", "VERL_ENGINE_DEVICE": "cuda"}
    finished = subprocess.run(
        [*ranks, "tests/two_ranks.py", tmp_path / "config.yaml", tmp_path],
        env=os.environ | process_environment(tmp_path, on_cpu=True) | one_thread,
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    real = json.loads((tmp_path / "found.json").read_text())
    part = config.actor_rollout_ref
    policy = states.parameters(states.PolicyChoice.of(part.model))
    kept = states.states(policy, 2, 4)
    assert (real["weights"], real["gradients"], real["optimiser"]) == (kept.weights, kept.gradients, kept.optimiser)

    engine = part.actor.fsdp_config
    computed = states.BYTES[fits._computed(engine)]
    reduced = max(fits._groups(policy, trained=True).values()) * 4
    gathered = fits._gathered(policy, computed) + reduced + kept.gradients
    expected = measure(part.model, fits._update_batch(config), fits._computed(engine)) + gathered
    assert real["peak"] == pytest.approx(expected, rel=0.1)

    files = [file for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    tensors = states.checkpoint_bytes(config) - states._TOKENIZER_BYTES
    assert stored_bytes(files) == tensors
    assert tensors <= sum(file.stat().st_size for file in files) <= states.checkpoint_bytes(config)


def stored_bytes(files):
    """Bytes of the tensors in the shards of weights and of Adam's moments, which files hold with their padding."""
    from torch.utils._pytree import tree_leaves

    from cobalt_verl.merge import load_weights

    total = 0
    for file in files:
        if file.name.startswith(("model_", "optim_")):
            is_weights = file.name.startswith("model_")
            leaves = tree_leaves(load_weights(file) if is_weights else torch.load(file, weights_only=False))
            locals_ = [leaf.to_local() for leaf in leaves if hasattr(leaf, "to_local")]
            total += sum(
                {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in locals_}.values()
            )
    return total


# --- the sizes of the paper


def test_states_of_the_papers_policy_on_four_gpus(models):
    policy = states.parameters(states.PolicyChoice.of(paper(models / "8B").actor_rollout_ref.model))
    assert sum(weight.count for weight in policy) == 8_190_735_360
    assert states.states(policy, 4, 4).total / GIB == pytest.approx(30.5, abs=0.05)
    assert states.checkpoint_bytes(paper(models / "8B")) / 1e9 == pytest.approx(98.3, abs=0.1)


def test_activations_grow_with_tokens_and_without_the_kernels_and_the_checkpoints(models):
    model = paper(models / "0.6B").actor_rollout_ref.model

    def size(**changes):
        return measure(model, MicroBatch(**({"rows": 2, "length": 4096} | changes)), "bf16")

    usual, logits = size(), 2 * 4096 * 151936 * 2
    assert logits < usual < 3 * logits
    assert usual == pytest.approx(size(rows=1, length=8192), rel=1e-3)
    assert 1.6 * usual < size(rows=4) < 2 * usual  # the rest are chunks, and the gradient of the embeddings
    assert size(backward=False) < usual < size(checkpointing=False)
    assert size(attention="mask") > usual + 2 * logits  # log-probs in 32 bits
    assert size(entropy="compiled") > usual + 0.9 * logits  # the gradient cannot take the place of the logits
    assert size(packed=False) > usual


TABLE = re.findall(
    r"^\| (\d) x (\d+) GB[^|]* \| (\S+) \| ([^|]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$",
    (ROOT / "docs" / "training.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_the_table_has_the_machines_that_are_meant():
    assert [(int(row[0]), int(row[1]), row[2]) for row in TABLE] == [
        (4, 80, "8B"), (8, 80, "8B"), (4, 40, "8B"), (1, 80, "8B"), (1, 24, "0.6B")
    ]  # fmt: skip


@pytest.mark.timeout(240)
@pytest.mark.parametrize("row", TABLE, ids=[" ".join(row[:3]) for row in TABLE])
def test_a_documented_set_of_overrides_fits_and_takes_what_the_table_says(models, row):
    gpus, card, model, overrides, *figures = row
    config = paper(models / model, *overrides.strip("` ").split())
    assert config.trainer.n_gpus_per_node == int(gpus) and config.cobalt.gpu_memory_gib == int(card)
    assert found(config)[0] == []
    estimate = fits.estimate(config, int(card) * GIB)
    shown = [f"{phase.total / GIB:.1f}" for phase in estimate.phases] + [f"{sum(estimate.host.values()) / GIB:.0f}"]
    assert shown == figures
    for data, rollout in (("problems", "single_turn"), ("episodes", "multi_turn")):
        other = paper(models / model, *overrides.strip("` ").split(), data=data, rollout=rollout)
        assert found(other)[0] == []


@pytest.mark.timeout(240)
def test_verl_itself_takes_every_documented_set_of_overrides(models, tmp_path):
    """What `launch.dry_run` starts, in one process for all sets, because the imports take most of the time."""
    files = []
    for place, (*_, model, overrides, _, _, _, _) in enumerate(TABLE):
        files.append(tmp_path / f"{place}.yaml")
        OmegaConf.save(paper(models / model, *overrides.strip("` ").split()), files[-1])
    program = "import sys; from cobalt_verl.main import main; [main(path, check=True) for path in sys.argv[1:]]"
    finished = subprocess.run(
        [sys.executable, "-c", program, *files], env=os.environ | process_environment(tmp_path, on_cpu=False),
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert len(files) == 5


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("model", "overrides", "helps"),
    [
        ("0.6B", ["trainer.n_gpus_per_node=1", "cobalt.gpu_memory_gib=24"], "log_prob_micro_batch_size_per_gpu"),
        (
            "0.6B",
            [
                "trainer.n_gpus_per_node=1",
                "cobalt.gpu_memory_gib=24",
                "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1",
                "actor_rollout_ref.rollout.gpu_memory_utilization=0.98",
                "data.max_prompt_length=2048",
            ],
            "gpu_memory_utilization",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_overrides_that_make_it_fit(models, model, overrides, helps):
    errors, notes = found(paper(models / model, *overrides))
    assert errors and notes
    settings = re.findall(r"[\w.]+=[\w.]+", errors[-1].partition(": set ")[2])
    assert any(helps in setting for setting in settings)
    assert found(paper(models / model, *overrides, *settings))[0] == []


@pytest.mark.parametrize(("gpus", "memory", "helps"), [(8, 150, "optimizer_offload=false"), (4, 20, None)])
def test_too_little_host_memory_is_refused_with_overrides_that_need_less(models, monkeypatch, gpus, memory, helps):
    monkeypatch.setattr(fits, "visible_gpus", lambda: [80 * GIB] * gpus)
    monkeypatch.setattr(fits, "_host_memory", lambda: float(memory * GIB))
    errors, _ = found(paper(models / "8B", f"trainer.n_gpus_per_node={gpus}"))
    assert len(errors) == 1 and "host memory" in errors[0]
    settings = re.findall(r"[\w.]+=[\w.]+", errors[0].partition(": set ")[2])
    if helps is None:
        assert not settings and "trainer.nnodes" in errors[0]
        return
    assert any(helps in setting for setting in settings)
    assert found(paper(models / "8B", f"trainer.n_gpus_per_node={gpus}", *settings))[0] == []


def test_offline_training_that_does_not_fit_is_refused_with_overrides_that_make_it_fit(models, monkeypatch):
    from cobalt.training import memory, offline

    monkeypatch.setattr(memory, "visible_gpus", list)

    def composed(*overrides, scale="paper-7b"):
        arguments = offline.Arguments(models, str(models / "8B"), models / "out", list(overrides), scale=scale)
        return offline.compose(arguments)

    def check(config):
        memory.check_fits(config, memory.estimate(config))

    check(composed())
    with pytest.raises(UserError, match="max_token_len_per_gpu") as refused:
        check(composed("cobalt.gpu_memory_gib=56"))
    check(composed("cobalt.gpu_memory_gib=56", *str(refused.value).partition(": set ")[2].split()))
    with pytest.raises(UserError, match="lora_rank=32"):
        check(composed(scale="paper-0.5b"))
    with pytest.raises(UserError, match="larger GPUs"):
        check(composed("cobalt.gpu_memory_gib=20"))
    monkeypatch.setattr(memory, "visible_gpus", lambda: [20 * GIB])
    with pytest.raises(UserError, match="larger GPUs"):
        check(composed())
    check(composed(scale="pocket"))


def test_what_no_override_can_fit_says_so(models):
    errors, _ = found(paper(models / "0.6B", "cobalt.gpu_memory_gib=3", "trainer.n_gpus_per_node=1"))
    assert errors and ": set " not in errors[-1]


def test_the_machines_own_gpus_count_and_the_smallest_decides(models, monkeypatch):
    config = paper(models / "0.6B")
    assert fits.card_bytes(config) == 80 * GIB
    monkeypatch.setattr(fits, "visible_gpus", lambda: [40 * GIB, 24 * GIB])
    assert fits.card_bytes(config) == 24 * GIB
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert fits.card_bytes(config) == 80 * GIB
    with pytest.raises(UserError, match="gpu_memory_gib"):
        fits.card_bytes(paper(models / "0.6B", "cobalt.gpu_memory_gib=much"))


def test_a_model_that_is_not_here_is_a_note_and_a_run_on_a_cpu_is_not_estimated(models):
    errors, notes = found(paper(models / "nothing"))
    assert not errors and "was not estimated" in notes[0]
    config = compose(TrainingSettings(models, str(models / "0.6B"), models / "out"))
    assert found(config) == ([], [])


def test_a_model_whose_code_reads_values_is_a_note_and_an_error_of_the_estimate_itself_is_none(models, monkeypatch):
    config = paper(models / "0.6B")
    monkeypatch.setattr(activations, "meta_policy", lambda choice: reading_values(states.meta_policy(choice)))
    activations._measured.cache_clear()
    errors, notes = found(config)
    assert not errors and "was not estimated" in notes[0]

    def broken(*_):
        raise TypeError

    monkeypatch.setattr(fits, "measure", broken)
    with pytest.raises(TypeError):
        found(config)


def reading_values(policy):
    """A model whose code looks at the tokens that it gets."""
    forward = policy.forward

    def look(input_ids, **others):
        return forward(input_ids=input_ids[: input_ids.max().item()], **others)

    policy.forward = look
    return policy


def test_the_engine_keeps_no_room_for_more_than_a_run_can_fill(models):
    assert paper(models / "8B").actor_rollout_ref.rollout.max_model_len == 16384
    assert paper(models / "8B", data="problems").actor_rollout_ref.rollout.max_model_len == 8192
    stated = paper(models / "8B", "actor_rollout_ref.rollout.max_model_len=20000")
    assert stated.actor_rollout_ref.rollout.max_model_len == 20000
    pocket = compose(TrainingSettings(models, str(models / "8B"), models / "out"))
    assert pocket.actor_rollout_ref.rollout.max_model_len is None


def test_the_smoke_profile_fits_the_gpu_that_it_is_for(models):
    settings = TrainingSettings(models, str(models / "0.6B"), models / "out", data="partial_trajectories")
    config = compose(replace(settings, scale="gpu-smoke"))
    assert config.cobalt.gpu_memory_gib == 16
    assert found(config)[0] == []
