"""The arithmetic of statistics: mean, spread, Gini, and values taken group by group. Pure NumPy, float64.

One rule for values that are not finite: they leave the statistics and are counted. One rule for nothing: no value.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TIE_TOLERANCE = 1e-8
"""Rewards of a group are equal when max − min is at most this."""


@dataclass(frozen=True)
class Column:
    """Finite values, the group of each (in non-decreasing order), and how many rows had a value that is not finite."""

    values: Floats
    groups: Ints
    num_nonfinite: int = 0

    def matrices(self) -> Iterator[Floats]:
        """The values with one row a group; groups of the same size share a matrix."""
        return by_size(self.values, self.groups)


def by_size(values: NDArray[Any], groups: Ints) -> Iterator[NDArray[Any]]:
    if not len(values):
        return
    starts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    sizes = np.diff(starts, append=len(groups))
    for size in np.unique(sizes):
        first = starts[sizes == size]
        yield values[first[:, None] + np.arange(size)]


def statistics(column: Column) -> dict[str, float]:
    """mean, std (sample standard deviation, ddof 1), min, max, count; nonfinite_count only when there are some."""
    values = column.values
    result: dict[str, float] = {}
    if len(values):
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(values.mean())
            result = {"mean": mean, "min": float(values.min()), "max": float(values.max())}
            if len(values) > 1:
                result["std"] = float(np.sqrt(np.square(values - mean).sum() / (len(values) - 1)))
        result["count"] = float(len(values))
    if column.num_nonfinite:
        result["nonfinite_count"] = float(column.num_nonfinite)
    return result


def block_statistics(values: Floats, groups: Ints) -> list[dict[str, float]]:
    """`statistics` and gini_mean of each row of a matrix of finite values over the same samples, all rows at once."""
    count = values.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=1)
        found = {
            "mean": mean,
            "min": values.min(axis=1),
            "max": values.max(axis=1),
            "count": np.full(len(values), count),
        }
        if count > 1:
            found["std"] = np.sqrt(np.square(values - mean[:, None]).sum(axis=1) / (count - 1))
    ginis = [
        gini_rows(values[:, places].reshape(-1, places.shape[1])).reshape(len(values), -1)
        for places in by_size(np.arange(count), groups)
    ]
    found["gini_mean"] = np.concatenate(ginis, axis=1).mean(axis=1)
    columns = {name: column.tolist() for name, column in found.items()}
    return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(values))]


def gini(values: Sequence[Any]) -> float | None:
    """Σᵢ Σⱼ |xᵢ − xⱼ| / (2 n Σᵢ |xᵢ|): 0 when all are equal or all are zero, at most (n − 1)/n. Absent without a
    finite value."""
    numbers = np.array([float(value) for value in values if value is not None], dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return float(gini_rows(numbers[None, :])[0]) if len(numbers) else None


def gini_rows(matrix: Floats) -> Floats:
    """Gini of each row. Sorted, Σᵢ Σⱼ |xᵢ − xⱼ| is 2 Σᵢ (2i − n − 1) x₍ᵢ₎; scaled first so that no sum overflows."""
    size = matrix.shape[1]
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    scaled = np.sort(matrix / np.where(largest > 0, largest, 1.0), axis=1)
    ranks = 2 * np.arange(1, size + 1) - size - 1
    total = size * np.abs(scaled).sum(axis=1)
    spread = np.maximum(scaled @ ranks, 0.0)  # rounding may leave −1e-17 where all are equal
    return np.where(total > 0, spread / np.where(total > 0, total, 1.0), 0.0)


def mean_over_groups(parts: list[Floats]) -> float | None:
    """Plain mean of one number a group; groups without the number are not in the parts."""
    together = np.concatenate(parts) if parts else np.empty(0)
    return float(together.mean()) if len(together) else None


def gini_mean(column: Column) -> float | None:
    return mean_over_groups([gini_rows(matrix) for matrix in column.matrices()])


def group_std_mean(column: Column) -> float | None:
    """Mean over groups of the within-group sample standard deviation; a group of one has none."""
    return mean_over_groups([matrix.std(axis=1, ddof=1) for matrix in column.matrices() if matrix.shape[1] > 1])


def max_median_ratio_mean(column: Column) -> float | None:
    """Mean over groups of largest / median. All zero: 1. Median 0 but not the largest: that group is left out."""
    parts = []
    for matrix in column.matrices():
        largest, median = matrix.max(axis=1), np.median(matrix, axis=1)
        ratio = np.where(median > 0, largest / np.where(median > 0, median, 1.0), 1.0)
        parts.append(ratio[(median > 0) | (largest == 0)])
    return mean_over_groups(parts)


def num_tied_groups(column: Column) -> tuple[int, int]:
    """Groups of two or more whose values are all equal, and groups of two or more."""
    matrices = [matrix for matrix in column.matrices() if matrix.shape[1] > 1]
    tied = sum(int((np.ptp(matrix, axis=1) <= TIE_TOLERANCE).sum()) for matrix in matrices)
    return tied, sum(len(matrix) for matrix in matrices)
