"""VeRPO's advantages on the tokens of each turn; `cobalt.reward.verpo` has the equations.

`algorithm.adv_estimator=verpo` chooses it, `algorithm.verpo` has its constants
(cobalt_verl/config/estimator/verpo.yaml).
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from cobalt.reward.verpo import VerpoSettings, advantages
from cobalt_verl.episodes import BATCH, METRICS, BatchRow

_ROUNDING = 1e-9
"""Advantages below this are rounding errors of 0."""


@register_adv_est("verpo")  # type: ignore[untyped-decorator]  # veRL is not typed
def verpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """A[row, token] = mask[row, token] x (A_traj(i) + β A_turn(i, t)), for the tokens of turn t of trajectory i.

    Its rewards come from the outcomes of single tests, which the trainer shows in `cobalt_verl.episodes.BATCH`. A
    trajectory may have several rows, each with some of its turns. The share of prompts whose programs all have the
    advantage 0 becomes the metric `reward/equal_verpo_groups`.

    Args:
        token_level_rewards: (rows, response length); only its shape and precision count.
        response_mask: (rows, response length); 1 where the policy wrote the token.
        index: (rows,); equal for the rows of one prompt.
        config: veRL's section `algorithm`, with `verpo`.

    Returns:
        The advantages, twice: as advantages and as returns. Rows of padding have zeros.

    Raises:
        ValueError: a program of the batch was judged on public tests alone.
    """
    settings = VerpoSettings(**config["verpo"])
    result = torch.zeros_like(token_level_rewards)
    groups: dict[Any, list[tuple[int, BatchRow]]] = defaultdict(list)
    for number, (prompt, row) in enumerate(zip(index, BATCH.get(), strict=True)):
        if row is not None:
            groups[prompt].append((number, row))
    equal = [_fill(result, rows, settings) for rows in groups.values()]
    METRICS.get({})["reward/equal_verpo_groups"] = float(np.mean(equal))
    result *= response_mask
    return result, result


def _fill(result: torch.Tensor, rows: Sequence[tuple[int, BatchRow]], settings: VerpoSettings) -> bool:
    """Write the advantages of the rows of one prompt into the result, and return whether they are all 0."""
    trajectories: dict[str, list[tuple[int, BatchRow]]] = defaultdict(list)
    for number, row in sorted(rows, key=lambda item: item[1].index):
        trajectories[row.session].append((number, row))
    outcomes, solved = [], []
    for members in trajectories.values():
        passed = [turn["passed"] for _, row in members for turn in row.record["turns"]]
        if any(tests is None for tests in passed):
            raise ValueError("VeRPO needs the outcome of every test at every turn: cobalt.judge_every_turn=true")
        outcomes.append(np.asarray(passed, np.float64))
        solved.append(members[-1][1].record["solved"])
    of_group = advantages(outcomes, solved, settings)
    for members, values in zip(trajectories.values(), of_group, strict=True):
        turns = [(number, turn) for number, row in members for turn in row.record["turns"]]
        for (number, turn), value in zip(turns, values, strict=True):
            result[number, turn["start"] : turn["stop"]] = float(value)
    return bool(np.abs(np.concatenate(of_group)).max() < _ROUNDING)
