"""Sets of integers that are given out in sequence: message numbers, sample ids. A million of them are a few numbers."""

from collections.abc import Iterable, Sequence

import numpy as np

from metrics.numbers import Ints


class Ids:
    """A set of integers kept as ranges of first and last."""

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self.ranges: Ints = np.empty((0, 2), dtype=np.int64)
        self.merge(np.array(list(ranges), dtype=np.int64).reshape(-1, 2))

    def __contains__(self, number: int) -> bool:
        return bool(self.known(np.array([number], dtype=np.int64))[0])

    def known(self, numbers: Ints) -> np.ndarray:
        """Per number: it is in the set."""
        if not len(self.ranges):
            return np.zeros(len(numbers), dtype=bool)
        place = np.searchsorted(self.ranges[:, 0], numbers, side="right") - 1
        return (place >= 0) & (numbers <= self.ranges[np.maximum(place, 0), 1])

    def add(self, numbers: Ints) -> None:
        if len(numbers):
            ordered = np.unique(numbers)
            breaks = np.flatnonzero(np.diff(ordered) > 1)
            firsts = ordered[np.concatenate([[0], breaks + 1])]
            lasts = ordered[np.concatenate([breaks, [len(ordered) - 1]])]
            self.merge(np.stack([firsts, lasts], axis=1))

    def merge(self, ranges: Ints) -> None:
        both = np.concatenate([self.ranges, ranges])
        if not len(both):
            return
        both = both[np.argsort(both[:, 0], kind="stable")]
        reach = np.maximum.accumulate(both[:, 1])
        new = np.concatenate([[True], both[1:, 0] > reach[:-1] + 1])
        last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(both) - 1]])
        self.ranges = np.stack([both[new, 0], reach[last]], axis=1)

    def as_list(self) -> list[list[int]]:
        return self.ranges.tolist()
