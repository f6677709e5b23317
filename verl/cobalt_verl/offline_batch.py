"""Rows of offline training as the tensors that veRL's engine trains on.

A group's responses follow one another in a batch, so that an engine may compute their prompt once. Values about a token
lie at the token before it, as veRL's log-probs do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cobalt.training.offline_tokens import Row


def batch(
    rows: Sequence[Row],
    start: Sequence[npt.NDArray[np.float32]] | None = None,
    counts: Sequence[bool] | None = None,
) -> dict[str, torch.Tensor]:
    """Rows as nested tensors (rows, tokens).

    Args:
        rows: At least one.
        start: The log-probs of each response's tokens under the starting policy; None: not needed.
        counts: Whether the tokens of each response count in the loss; None: all do.

    Returns:
        `input_ids`, `position_ids`, `prompts`, and, placed like log-probs, `loss_mask`, `advantages` and
        `start_log_probs` if they are given.
    """
    counts = counts or [True] * len(rows)
    fields = {
        "input_ids": [torch.from_numpy(np.concatenate([row.prompt, row.response]).astype(np.int64)) for row in rows],
        "position_ids": [torch.arange(row.length) for row in rows],
        "prompts": [torch.from_numpy(row.prompt.astype(np.int64)) for row in rows],
        "loss_mask": [_placed(row, np.int64(counted)) for row, counted in zip(rows, counts, strict=True)],
        "advantages": [_placed(row, np.float32(row.advantage)) for row in rows],
    }
    if start is not None:
        fields["start_log_probs"] = [_placed(row, values) for row, values in zip(rows, start, strict=True)]
    return {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in fields.items()}


def _placed(row: Row, values: npt.NDArray[Any] | np.generic) -> torch.Tensor:
    """Values about a response's tokens (or one for all) at the tokens before them, and 0 elsewhere."""
    placed = np.zeros(row.length, values.dtype)
    placed[len(row.prompt) - 1 : -1] = values
    return torch.from_numpy(placed)


def response_values(row: Row, values: torch.Tensor) -> npt.NDArray[np.float32]:
    """The opposite of placing: the values about a response's tokens."""
    chosen: npt.NDArray[np.float32] = values[len(row.prompt) - 1 : row.length - 1].float().numpy()
    return chosen
