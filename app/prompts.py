"""Which prompt a group gets: a pure function of the seed and the group's number.

Environments are drawn by weight; within one, prompts are drawn without replacement, in a new order each epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BLOCK = 4096
Weights = Callable[[int], Sequence[float]]


@dataclass(frozen=True)
class Draw:
    """The prompt of one group: which environment (by position), which of its samples, in which of its epochs."""

    environment: int
    sample: int
    epoch: int


class Weighted(Protocol):
    """What is drawn by weight; an environment's entry in the config has it."""

    @property
    def weight(self) -> float: ...

    @property
    def curriculum(self) -> list[list[float]] | None: ...


def weight_at(entry: Weighted, batch: float) -> float:
    """The weight when so many batches of prompts have been drawn: linear between the points of a curriculum."""
    if entry.curriculum is None:
        return entry.weight
    return float(np.interp(batch, *np.transpose(entry.curriculum)))


class PromptOrder:
    """`at(group)` for any group; what has been computed is kept, block by block.

    sizes: number of prompts of each environment. weights: of each, positive; or a function that gives them by the
    number of batches drawn, some of them 0, and `groups_per_batch`. They need not add up to one. Batches drawn, not
    steps done: so the order is the same whenever a group is admitted, and after a resume.
    """

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float] | Weights, seed: int, groups_per_batch: int = 1
    ) -> None:
        first = weights(0) if callable(weights) else weights
        if len(sizes) != len(first) or not sizes or min(sizes) < 1 or (not callable(weights) and min(first) <= 0):
            raise ValueError(f"every environment needs prompts and a weight over 0, got {sizes} and {first}")
        self.sizes = list(sizes)
        self.weights: Weights = weights if callable(weights) else lambda batch: first
        self.groups_per_batch = groups_per_batch
        self.seed = seed
        self.blocks: list[tuple[np.ndarray, np.ndarray]] = []  # per group: environment, draws of it before
        self.drawn = np.zeros(len(sizes), dtype=np.int64)
        self.orders: dict[tuple[int, int], np.ndarray] = {}

    def at(self, group: int) -> Draw:
        while group >= BLOCK * len(self.blocks):
            self._extend()
        environments, earlier = self.blocks[group // BLOCK]
        environment, draws = int(environments[group % BLOCK]), int(earlier[group % BLOCK])
        epoch, position = divmod(draws, self.sizes[environment])
        return Draw(environment, int(self._order(environment, epoch)[position]), epoch)

    def _extend(self) -> None:
        rng = np.random.default_rng([self.seed, len(self.blocks)])
        chosen = self._drawn(rng.random(BLOCK), BLOCK * len(self.blocks))
        earlier = np.empty(BLOCK, dtype=np.int64)
        for environment in range(len(self.sizes)):
            here = chosen == environment
            earlier[here] = self.drawn[environment] + np.arange(here.sum())
            self.drawn[environment] += here.sum()
        self.blocks.append((chosen, earlier))

    def _drawn(self, uniform: np.ndarray, first_group: int) -> np.ndarray:
        """The environment of each group, from one number in [0, 1) each."""
        batches = (first_group + np.arange(len(uniform))) // self.groups_per_batch
        numbers, which = np.unique(batches, return_inverse=True)
        edges = np.cumsum([self.weights(int(number)) for number in numbers], axis=1, dtype=float)
        edges /= edges[:, -1:]
        return (uniform[:, None] >= edges[which]).sum(axis=1)

    def _order(self, environment: int, epoch: int) -> np.ndarray:
        key = (environment, epoch)
        if key not in self.orders:
            rng = np.random.default_rng([self.seed, 1 + environment, epoch])
            self.orders = {k: v for k, v in self.orders.items() if k[0] != environment or k[1] >= epoch - 1}
            self.orders[key] = rng.permutation(self.sizes[environment])
        return self.orders[key]
