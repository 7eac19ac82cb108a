"""Numbers that are carried as sums through micro-batches and ranks and divided once.

A mean of means depends on how a batch was cut; sums do not. Each key has a kind, and a kind says which parts
it carries and what becomes of them at the end:

    mean   total, count                         total / count
    sum    total                                total
    ess    sum of w, sum of w^2, count          (sum w)^2 / (count * sum w^2), the effective share of samples
    max    largest                              largest
"""

import math
from collections.abc import Callable, Sequence

Parts = list[float]

FINISH: dict[str, Callable[[Parts], float | None]] = {
    "mean": lambda parts: parts[0] / parts[1] if parts[1] else None,
    "sum": lambda parts: parts[0],
    "ess": lambda parts: parts[0] ** 2 / (parts[2] * parts[1]) if parts[1] and parts[2] else None,
    "max": lambda parts: None if parts[0] == -math.inf else parts[0],
}
# What a key holds before anything was added; its length is the number of parts.
NOTHING: dict[str, Parts] = {"mean": [0.0] * 2, "sum": [0.0], "ess": [0.0] * 3, "max": [-math.inf]}


class Sums:
    """Partial results by key. Ranks reduce `added()` by SUM and `largest()` by MAX, then call `reduced`."""

    def __init__(self, kinds: dict[str, str] | None = None) -> None:
        """`kinds` declares keys, so that ranks agree on them whatever each has measured."""
        self._kinds: dict[str, str] = {}
        self._parts: dict[str, Parts] = {}
        for key, kind in (kinds or {}).items():
            self.add(key, kind, NOTHING[kind])

    def add(self, key: str, kind: str, parts: Sequence[float]) -> None:
        """Add the parts of one kind to a key."""
        if kind not in NOTHING or len(parts) != len(NOTHING[kind]):
            raise ValueError(f"metric '{key}': got {len(parts)} parts of kind {kind!r}, wanted {NOTHING}")
        known = self._kinds.setdefault(key, kind)
        if known != kind:
            raise ValueError(f"metric '{key}' is of kind {known}, got {kind}")
        before = self._parts.get(key, NOTHING[kind])
        combine = _larger if kind == "max" else float.__add__
        self._parts[key] = [combine(old, float(new)) for old, new in zip(before, parts, strict=True)]

    def add_mean(self, key: str, total: float, count: float) -> None:
        """A total over `count` things."""
        self.add(key, "mean", [total, count])

    def add_sum(self, key: str, total: float) -> None:
        """A plain count or amount."""
        self.add(key, "sum", [total])

    def merge(self, other: "Sums") -> None:
        """Add another part of the same whole."""
        for key, parts in other._parts.items():
            self.add(key, other._kinds[key], parts)

    def values(self) -> dict[str, float]:
        """Every key that was measured, divided once; a key with count 0 is absent."""
        finished = {key: FINISH[self._kinds[key]](parts) for key, parts in sorted(self._parts.items())}
        return {key: value for key, value in finished.items() if value is not None}

    def added(self) -> Parts:
        """What ranks add up: one flat vector, in the order of the sorted keys."""
        return [part for key in self._keys(is_max=False) for part in self._parts[key]]

    def largest(self) -> Parts:
        """What ranks take the largest of: one flat vector, in the order of the sorted keys."""
        return [self._parts[key][0] for key in self._keys(is_max=True)]

    def reduced(self, added: Sequence[float], largest: Sequence[float]) -> "Sums":
        """The same keys with all-reduced vectors in place of this rank's."""
        wanted = (len(self.added()), len(self.largest()))
        if (len(added), len(largest)) != wanted:
            raise ValueError(
                f"got {len(added)} + {len(largest)} numbers, wanted {wanted[0]} + {wanted[1]}: "
                "all ranks need the same keys"
            )
        result, rest = Sums(), [*added, *largest]
        for key in [*self._keys(is_max=False), *self._keys(is_max=True)]:
            width = len(self._parts[key])
            result.add(key, self._kinds[key], rest[:width])
            rest = rest[width:]
        return result

    def _keys(self, is_max: bool) -> list[str]:
        return sorted(key for key, kind in self._kinds.items() if (kind == "max") == is_max)


def _larger(first: float, second: float) -> float:
    """max() that keeps nan from either side: a wrong number must not hide behind a right one."""
    return math.nan if math.isnan(first) or math.isnan(second) else max(first, second)
