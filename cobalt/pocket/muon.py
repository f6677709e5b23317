"""The Muon optimiser for the seed model's matrices: momentum, orthogonalised by Newton-Schulz iterations.

It needs about two thirds of AdamW's examples for the same loss, which decides whether minutes on two cores suffice.
torch's own Muon works in bfloat16 and matrix by matrix, which is slow on a CPU; this one works in float32 and on stacks
of matrices of the same shape.
"""

from collections.abc import Iterable
from typing import Any

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_TINY = 1e-7
_MOMENTUM = 0.95  # in Nesterov's form
_WEIGHT_DECAY = 0.05  # decoupled


class Muon:
    """The optimiser, with the momentum of its matrices.

    Args:
        matrices: Parameters of two dimensions.
        learning_rate: Scaled by 0.2 * sqrt(larger side), so that it compares with one for AdamW.
    """

    def __init__(self, matrices: Iterable[Any], learning_rate: float) -> None:
        import torch

        self._learning_rate = learning_rate
        stacks: dict[Any, list[Any]] = {}
        for matrix in matrices:
            stacks.setdefault(matrix.shape, []).append(matrix)
        self._stacks = [(stack, torch.zeros_like(torch.stack(stack), requires_grad=False)) for stack in stacks.values()]

    def step(self, share: float) -> None:
        """Apply the gradients with `share` of the learning rate, then drop them."""
        import torch

        rate = self._learning_rate * share
        with torch.no_grad():
            for stack, momenta in self._stacks:
                gradients = torch.stack([matrix.grad for matrix in stack])
                updates = _orthogonal(gradients.add_(momenta.mul_(_MOMENTUM).add_(gradients), alpha=_MOMENTUM))
                for matrix, update in zip(stack, updates, strict=True):
                    matrix.mul_(1 - rate * _WEIGHT_DECAY)
                    matrix.sub_(update, alpha=rate * 0.2 * max(matrix.shape) ** 0.5)
                    matrix.grad = None


def _orthogonal(stack: Any) -> Any:
    """The nearest (semi-)orthogonal matrices, roughly; `stack` has shape (count, rows, columns)."""
    tall = stack.shape[1] > stack.shape[2]
    result = stack.mT if tall else stack
    result = result / (result.norm(dim=(1, 2), keepdim=True) + _TINY)
    first, second, third = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = result @ result.mT
        result = first * result + (second * square + third * (square @ square)) @ result
    return result.mT if tall else result
