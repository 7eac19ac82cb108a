"""Declared ranges of rewards and metrics (contract section 7). They shape charts and colours; they never touch
training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Range = tuple[float | None, float | None]
UNKNOWN: Range = (None, None)


def check_range(subject: str, low: float | None, high: float | None) -> None:
    """A side may be missing; both together must leave room between them."""
    for side, value in (("min", low), ("max", high)):
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{subject}: {side} = {value} must be a finite number")
    if low is not None and high is not None and low >= high:
        raise ValueError(f"{subject}: min = {low} must be below max = {high}")


def declared(
    environments: Sequence[Mapping[str, Any]], metric: str, environment: str | None = None
) -> tuple[Range, bool]:
    """The declared range of `reward` or of a sample metric, and whether lower is better.

    Without an environment: the hull of those that declare it. A side is only declared when every one of them does.
    """
    found = [entry for entry in environments if environment in (None, entry["name"])]
    bounds = [own for entry in found if (own := of_environment(entry, metric)) is not None]
    if not bounds:
        return UNKNOWN, False
    lows, highs = [b.get("min") for b in bounds], [b.get("max") for b in bounds]
    low = None if None in lows else min(lows)  # type: ignore[type-var]
    high = None if None in highs else max(highs)  # type: ignore[type-var]
    return (low, high), all(b.get("invert", False) for b in bounds)


def of_environment(environment: Mapping[str, Any], metric: str) -> Mapping[str, Any] | None:
    if metric == "reward":
        low, high = environment.get("reward_min"), environment.get("reward_max")
        return None if low is None and high is None else {"min": low, "max": high}
    return (environment.get("metrics_ranges") or {}).get(metric)


def shown(declared_range: Range, observed: Range) -> tuple[list[float | None], str]:
    """The range of a chart: each declared side, else the observed one; and where it comes from."""
    sides = [own if own is not None else seen for own, seen in zip(declared_range, observed, strict=True)]
    if any(side is not None for side in declared_range):
        return sides, "declared"
    return sides, "none" if None in sides else "observed"
