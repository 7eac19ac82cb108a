"""Which prompt a group gets: a pure function of the seed and the group's number.

Environments are drawn by weight; within one, prompts are drawn without replacement, in a new order each epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCK = 4096


@dataclass(frozen=True)
class Place:
    """The prompt of one group: which environment (by position), which of its samples, in which of its epochs."""

    environment: int
    sample: int
    epoch: int


class PromptOrder:
    """`at(group)` for any group; what has been computed is kept, block by block.

    sizes: number of prompts of each environment. weights: positive, need not add up to one.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        if len(sizes) != len(weights) or not sizes or min(sizes) < 1 or min(weights) <= 0:
            raise ValueError(f"every environment needs prompts and a weight over 0, got {sizes} and {weights}")
        self.sizes = list(sizes)
        self.shares = np.asarray(weights, dtype=float) / float(np.sum(weights))
        self.seed = seed
        self.blocks: list[tuple[np.ndarray, np.ndarray]] = []  # per group: environment, draws of it before
        self.drawn = np.zeros(len(sizes), dtype=np.int64)
        self.orders: dict[tuple[int, int], np.ndarray] = {}

    def at(self, group: int) -> Place:
        while group >= BLOCK * len(self.blocks):
            self._extend()
        environments, earlier = self.blocks[group // BLOCK]
        environment, draws = int(environments[group % BLOCK]), int(earlier[group % BLOCK])
        epoch, position = divmod(draws, self.sizes[environment])
        return Place(environment, int(self._order(environment, epoch)[position]), epoch)

    def _extend(self) -> None:
        rng = np.random.default_rng([self.seed, len(self.blocks)])
        chosen = rng.choice(len(self.sizes), size=BLOCK, p=self.shares)
        earlier = np.empty(BLOCK, dtype=np.int64)
        for environment in range(len(self.sizes)):
            here = chosen == environment
            earlier[here] = self.drawn[environment] + np.arange(here.sum())
            self.drawn[environment] += here.sum()
        self.blocks.append((chosen, earlier))

    def _order(self, environment: int, epoch: int) -> np.ndarray:
        key = (environment, epoch)
        if key not in self.orders:
            rng = np.random.default_rng([self.seed, 1 + environment, epoch])
            self.orders = {k: v for k, v in self.orders.items() if k[0] != environment or k[1] >= epoch - 1}
            self.orders[key] = rng.permutation(self.sizes[environment])
        return self.orders[key]
