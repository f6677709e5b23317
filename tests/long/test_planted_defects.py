"""The comparison of tests/test_method.py is fine enough: a defect in method.py is seen in each figure that it changes.

Not part of scripts/test.sh (scripts/test_long.sh).
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # pytest has only this folder on its path

from test_method import OWN, TOLERANCES, Settings, TorchPolicy, differences, made, method, torch  # noqa: F401 - a fixture


def over_n(group):
    rewards = torch.tensor([completed.reward for completed in group])
    return ((rewards - rewards.mean()) / (rewards.std(unbiased=False) + 1e-6)).tolist()


class Shifted(TorchPolicy):
    """A policy whose log-probs are those of the tokens before."""

    def log_probs(self, samples, temperature=1.0):
        before = [replace(s, prompt=s.prompt[:-1], response=(s.prompt[-1], *s.response[:-1])) for s in samples]
        return super().log_probs(before, temperature)


def loss_with_k3(policy, rows, own, loss=method.loss):
    now = torch.cat(policy.log_probs([row.sample for row in rows], own.training.temperature))
    change = torch.cat([row.reference for row in rows]) - now
    return loss(policy, rows, own._replace(kl=0.0)) + own.kl * (change.exp() - change - 1).sum()


def loss_without_bound(policy, rows, own):
    """Without what veRL adds to the clipped ratio."""
    now = torch.cat(policy.log_probs([row.sample for row in rows], own.training.temperature))
    parts = []
    for row, values in zip(rows, now.split([len(row.old) for row in rows]), strict=True):
        ratio = (values - row.old).exp()
        clipped = torch.maximum(-row.advantage * ratio, -row.advantage * ratio.clamp(*own.clip))
        parts.append(clipped + own.kl * (values - row.reference).square() / 2)
    return torch.cat(parts).sum()


DEFECTS = {
    "mean over responses": {"settings": {"micro_batch": 1, "weight": lambda mini, micro: 1 / len(mini) / sum(micro)}},
    "n in place of n - 1": {"weigh": over_n},
    "another KL": {"loss": loss_with_k3},
    "clipped at 1.2": {"settings": {"clip": (0.8, 1.2)}},
    "temperature 1": {"settings": {"training": Settings().training}},
    "shifted by a token": {"kind": Shifted},
    "no bound at 3": {"loss": loss_without_bound},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(made, monkeypatch, defect):  # noqa: F811 - the fixture
    planted = dict(DEFECTS[defect])
    if "loss" in planted:
        monkeypatch.setattr(method, "loss", planted.pop("loss"))
    own = OWN._replace(**planted.pop("settings", {}))
    measured = differences(made, "shared prompts", "mini_batch", "SGD", own, **planted)
    seen = {name for name, value in measured.items() if value > TOLERANCES[name]}
    assert {"losses", "gradients", "SGD"} <= seen
    assert ("advantages" in seen) == (defect == "n in place of n - 1")
