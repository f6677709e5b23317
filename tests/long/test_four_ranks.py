"""Four ranks on gloo with the paper's switches make the update of one, and go on after a kill to the same policy.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import ROOT, run_ranks
from test_method import make_batch, make_policy

from cobalt.engine.torch_policy import TorchPolicy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from omegaconf import OmegaConf

    from cobalt.training.configuration import TrainingSettings, compose

    made = tmp_path_factory.mktemp("four_ranks")
    make_policy(made / "model")
    torch.save(make_batch(TorchPolicy.load(made / "model")), made / "batch.pt")
    overrides = ("actor_rollout_ref.model.use_remove_padding=true", "actor_rollout_ref.actor.fsdp_config.fsdp_size=2")
    config = compose(TrainingSettings(made, str(made / "model"), made / "run", overrides=overrides))
    OmegaConf.resolve(config)
    OmegaConf.save(config, made / "config.yaml")
    return made


def by_ranks(folder, mode, ranks):
    finished = run_ranks("long/four_ranks.py", ranks, folder, mode)
    if mode == "first":
        assert finished.returncode != 0, "it was killed"
    else:
        assert finished.returncode == 0, finished.stderr[-3000:]
    return torch.load(folder / f"{mode}-{ranks}.pt")


def test_four_ranks_make_the_update_of_one_go_on_after_a_kill_and_are_exported(folder):
    one, four = by_ranks(folder, "whole", 1), by_ranks(folder, "whole", 4)
    assert four["norms"] == pytest.approx(one["norms"], rel=1e-4)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(four["weights"][name], weight, rtol=1e-3, atol=2e-5)
    first, rest = by_ranks(folder, "first", 4), by_ranks(folder, "rest", 4)
    assert first["norms"] + rest["norms"] == four["norms"]
    for name, weight in four["weights"].items():
        assert torch.equal(rest["weights"][name], weight), name
    merged = [sys.executable, "-m", "cobalt_verl.merge", folder / "rest", folder / "exported"]
    subprocess.run(merged, cwd=ROOT, check=True, capture_output=True)
    exported = dict(TorchPolicy.load(folder / "exported").model.named_parameters())
    assert exported.keys() == rest["weights"].keys()
    for name, weight in rest["weights"].items():
        torch.testing.assert_close(exported[name].detach(), weight, rtol=0, atol=0)
