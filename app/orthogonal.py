"""Momentum whose update of each matrix is made orthogonal (known as Muon): few examples teach a small model much.

PyTorch's own version computes in bfloat16, which most CPUs do slowly.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration that drives all singular values towards one."""

ITERATIONS = 3
MOMENTUM = 0.9


class OrthogonalMomentum(torch.optim.Optimizer):
    """For matrices only. The learning rate is the size of an update's singular values."""

    def __init__(self, matrices: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        for group in self.param_groups:
            for matrix in group["params"]:
                average = self.state[matrix].setdefault("average", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(average, MOMENTUM))
                rows, columns = matrix.shape
                matrix.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Roughly the nearest matrix with orthogonal rows or columns."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonal(matrix.T).T
    a, b, c = QUINTIC
    found = matrix / (matrix.norm() + 1e-7)
    for _ in range(ITERATIONS):
        square = found @ found.T
        found = a * found + (b * square + c * square @ square) @ found
    return found
