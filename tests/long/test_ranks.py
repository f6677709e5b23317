"""Four ranks of veRL on gloo: the order of micro-batches changes no loss and no gradient, and the limit is long.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from support import run_ranks
from test_method import make_batch, make_policy

from cobalt.engine.torch_policy import TorchPolicy

RANKS = 4


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    """Result of tests/long/rank_updates.py for an update of eight responses on four ranks."""
    from omegaconf import OmegaConf

    from cobalt.training.configuration import TrainingSettings, compose

    folder = tmp_path_factory.mktemp("ranks")
    make_policy(folder / "model")
    torch.save(make_batch(TorchPolicy.load(folder / "model")), folder / "batch.pt")
    config = compose(TrainingSettings(folder, str(folder / "model"), folder / "run"))
    OmegaConf.resolve(config)
    OmegaConf.save(config, folder / "config.yaml")
    finished = run_ranks("long/rank_updates.py", RANKS, folder)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return torch.load(folder / "ranks.pt")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mean", ["mini_batch", "micro_batch"])
def test_an_update_takes_the_largest_micro_batches_first_and_keeps_its_loss(updated, mean):
    before, sorted_ones = updated[mean, "veRL's own"], updated[mean, "by tokens"]
    assert sorted_ones["losses"] == pytest.approx(before["losses"], rel=1e-5)
    for one, other in zip(sorted_ones["gradients"], before["gradients"], strict=True):
        for name, gradient in other.items():
            torch.testing.assert_close(one[name], gradient, rtol=1e-4, atol=1e-6)
    own, by_tokens = before["orders"], sorted_ones["orders"]
    assert own != by_tokens
    assert by_tokens == [[sorted(order, reverse=True) for order in orders] for orders in own]
    assert len(by_tokens) == RANKS


@pytest.mark.timeout(600)
def test_ranks_wait_longer_for_each_other_than_a_slow_disk_takes(updated):
    from cobalt_verl.reporting_worker import GROUP_SECONDS

    assert updated["limit"] == GROUP_SECONDS
