"""The four choices of a training run: every combination composes, and what each combination sets is written down.

`training_configurations.json` has, for each kind of data and each scale, every setting that is not veRL's default.
"""

import inspect
import itertools
import json
import shutil
from pathlib import Path

import pytest
from support import ROOT, composed

from cobalt.stage.errors import UserError
from cobalt.training import configuration
from cobalt.training.configuration import VERL_ADDITIONS, TrainingSettings, compose, installed_package

pytestmark = pytest.mark.slow

WRITTEN = json.loads((Path(__file__).parent / "training_configurations.json").read_text())
FOLDERS = ("data", "rollout", "estimator", "scale")
PATHS = {
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.prometheus.served_model_name",
    "data.train_files",
    "data.val_files",
    "trainer.default_local_dir",
}


def made(*overrides, **choices):
    """A composed configuration."""
    return composed("data", "model", "out", *overrides, **choices)


def flat(value, prefix=""):
    """Dotted keys of a nested mapping; an empty mapping is a value."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    parts = (flat(part, f"{prefix}.{name}".lstrip(".")) for name, part in value.items())
    return {key: leaf for part in parts for key, leaf in part.items()}


def resolved(config):
    from omegaconf import OmegaConf

    return flat(OmegaConf.to_container(config, resolve=True))


@pytest.fixture(scope="module")
def of_verl():
    """Every setting as veRL has it by itself."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    with initialize_config_dir(str(installed_package("verl") / "trainer" / "config"), version_base=None):
        return resolved(hydra_compose("ppo_trainer"))


def test_each_setting_is_verls_default_or_written_down(of_verl):
    composed = {}
    for data, scale in itertools.product(("problems", "partial_trajectories"), ("paper", "pocket", "cpu", "gpu-1")):
        settings = resolved(made(data=data, scale=scale))
        composed[f"{data} at {scale} scale"] = {
            key: value
            for key, value in settings.items()
            if (key not in of_verl or value != of_verl[key]) and key not in PATHS
        }
    assert composed == WRITTEN


@pytest.mark.parametrize(
    ("hidden", "layers", "vocabulary", "scale", "bucket"),
    [(192, 4, 512, "pocket", 64), (576, 30, 49152, "cpu", 110), (896, 24, 151936, "cpu", 521)],
)
def test_the_models_size_chooses_between_the_scales_for_a_cpu(tmp_path, hidden, layers, vocabulary, scale, bucket):
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, vocab_size=vocabulary, intermediate_size=3 * hidden,
        num_attention_heads=hidden // 64, num_key_value_heads=1, tie_word_embeddings=True,
    ).save_pretrained(tmp_path)  # fmt: skip
    settings = TrainingSettings(Path("data"), str(tmp_path), Path("out"))
    assert settings.choices["scale"] == scale
    chosen = compose(settings).actor_rollout_ref
    assert chosen.rollout.checkpoint_engine.update_weights_bucket_megabytes == pytest.approx(bucket, abs=2)
    assert (chosen.actor.optim.lr, chosen.actor.kl_loss_coef) == ((4e-4, 0.1) if scale == "pocket" else (1e-6, 1e-4))


@pytest.mark.parametrize(
    ("gpus", "cluster", "millions", "scale"),
    [
        ([], "", 500, "paper"),
        ([24], "", 500, "gpu-1"),
        ([80], "", 8000, "gpu-1"),
        ([80] * 4, "", 8000, "paper"),
        ([80] * 4, "", 500, "gpu-1"),
        ([24] * 4, "", 8000, "gpu-1"),
        ([80], "127.0.0.1:1", 500, "paper"),
    ],
)
def test_the_models_size_and_the_gpus_choose_between_the_scales_for_gpus(
    tmp_path, monkeypatch, gpus, cluster, millions, scale
):
    from transformers import LlamaConfig

    from cobalt.training import machine
    from cobalt.training.offline import Arguments

    monkeypatch.setattr(configuration, "package_version", lambda package: "")
    monkeypatch.setattr(machine, "visible_gpus", lambda: [size * 2**30 for size in gpus])
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    size = {"vocab_size": 1000, "hidden_size": 1024, "num_hidden_layers": 2, "intermediate_size": millions * 161}
    LlamaConfig(**size).save_pretrained(tmp_path)
    assert TrainingSettings(Path("data"), str(tmp_path), Path("out")).choices["scale"] == scale
    assert Arguments(Path("data"), str(tmp_path), Path("out")).chosen_scale[0] == "gpu-1"


def test_the_fast_scale_is_the_papers_but_for_its_mean_and_its_micro_batches():
    paper, fast = (resolved(made(data="partial_trajectories", scale=scale)) for scale in ("paper", "fast"))
    changed = {key.rpartition(".")[2] for key, value in fast.items() if paper.get(key) != value}
    assert changed == {
        "loss_agg", "use_dynamic_bsz", "log_prob_use_dynamic_bsz", "ppo_max_token_len_per_gpu",
        "log_prob_max_token_len_per_gpu",
    }  # fmt: skip


def test_agent_loops_shards_and_storage_follow_from_the_machine_unless_they_are_set():
    loops = "actor_rollout_ref.rollout.agent.num_workers"
    storage = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    shards = [f"actor_rollout_ref.{name}.fsdp_config.fsdp_size" for name in ("actor", "ref")]
    nodes = ("trainer.nnodes=2", "trainer.n_gpus_per_node=8")
    settings = resolved(made(*nodes, scale="paper"))
    assert [settings[key] for key in (loops, *shards, storage)] == [32, 8, 8, 16]
    settings = resolved(made(*nodes, f"{loops}=3", f"{storage}=3", scale="paper"))
    assert settings[loops] == settings[storage] == 3


def test_every_choice_composes_at_every_scale():
    """With any others, because the scale comes last and the other choices have no key in common (the next test)."""
    files = [sorted(path.stem for path in (VERL_ADDITIONS / "config" / folder).glob("*.yaml")) for folder in FOLDERS]
    *others, scales = files
    for scale, index in itertools.product(scales, range(max(map(len, others)))):
        names = [names[index % len(names)] for names in others]
        resolved(made(**dict(zip(FOLDERS, (*names, scale), strict=True))))


def test_the_baselines_are_online_in_several_turns():
    settings = resolved(made(data="episodes", rollout="multi_turn", scale="pocket"))
    expected = {
        "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.agent.default_agent_loop": "seeded_multi_turn",
        "cobalt.multi_turn.turns": 3, "cobalt.multi_turn.stop": "never", "data.max_prompt_length": 1024,
        "actor_rollout_ref.actor.clip_ratio_high": 0.4,
    }  # fmt: skip
    assert {key: settings[key] for key in expected} == expected


def test_no_two_choices_set_the_same_key_except_the_scale_which_is_applied_last():
    import yaml

    set_by = {}
    for folder in FOLDERS[:3]:
        for path in (VERL_ADDITIONS / "config" / folder).glob("*.yaml"):
            for key in flat(yaml.safe_load(path.read_text())):
                assert set_by.setdefault(key, folder) == folder, key


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_unknown_choice_names_the_known_ones(folder):
    known = TrainingSettings(Path("data"), "model", Path("out")).choices[folder]
    with pytest.raises(UserError, match=rf"no_such.*\b{known}\b"):
        made(**{folder: "no_such"})


@pytest.mark.parametrize(
    ("file", "text"),
    [("estimator/mine.yaml", "algorithm: {adv_estimator: a}}"), ("scale/mine.yaml", "cobalt: {samples: seeded}\n")],
)
def test_a_choice_that_is_not_yaml_or_leaves_a_setting_open_is_a_users_mistake(tmp_path, monkeypatch, file, text):
    shutil.copytree(VERL_ADDITIONS / "config", tmp_path / "config")
    (tmp_path / "config" / file).write_text(text)
    monkeypatch.setattr(configuration, "VERL_ADDITIONS", tmp_path)
    with pytest.raises(UserError):
        made(**{file.partition("/")[0]: "mine"})


def test_verl_loads_the_reward_function_from_the_papers_path(monkeypatch):
    """By veRL's own loader, as the authors' script sets it; training runs load the default."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    monkeypatch.chdir(ROOT)
    config = made("reward.custom_reward_function.path=verl/code_reward_func_think.py", scale="paper")
    assert config.reward.custom_reward_function.path == str(ROOT / "verl" / "code_reward_func_think.py")
    function = get_custom_reward_fn(config).args[0]
    assert inspect.iscoroutinefunction(function)
    assert (function.__module__, function.__name__) == ("cobalt_verl.code_reward_func_think", "compute_score")
