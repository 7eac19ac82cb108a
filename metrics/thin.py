"""Fewer points of a long curve, keeping its extremes.

Beyond `max_points` steps, steps are put into buckets whose width is a power of two and whose borders are fixed
(multiples of the width), so a curve that grows does not jump. A bucket gives two points, at its first and last step:
the smallest and the largest value in it, in the order in which they occur. The newest step keeps its own value.
"""

import numpy as np
from numpy.typing import NDArray

from metrics.numbers import Floats, Ints


def bucket_width(steps: Ints, max_points: int) -> int:
    """Smallest power of two with which two points a bucket are at most max_points (1: nothing is left out)."""
    if len(steps) <= max(max_points, 4):
        return 1
    width = 2
    while 2 * (steps[-1] // width - steps[0] // width + 1) + 1 > max(max_points, 4):
        width *= 2
    return width


def thinned_steps(steps: Ints, width: int) -> tuple[Ints, NDArray[np.intp]]:
    """The x of the points, and where each bucket begins in `steps`."""
    starts = np.flatnonzero(np.diff(steps // width, prepend=steps[0] // width - 1))
    ends = np.append(starts[1:], len(steps)) - 1
    return np.stack([steps[starts], steps[ends]], axis=1).ravel(), starts


def thinned(values: Floats, starts: NDArray[np.intp]) -> Floats:
    """Two values a bucket for `thinned_steps`; NaN where a bucket has none. The last one is the newest value itself."""
    low = np.minimum.reduceat(np.where(np.isnan(values), np.inf, values), starts)
    high = np.maximum.reduceat(np.where(np.isnan(values), -np.inf, values), starts)
    place = np.arange(len(values))
    bucket = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(values)))
    low_first = first_place(values == low[bucket], place, starts) <= first_place(values == high[bucket], place, starts)
    pair = np.where(low_first[:, None], np.stack([low, high], axis=1), np.stack([high, low], axis=1))
    return np.where(np.isfinite(pair), pair, np.nan).ravel()


def first_place(here: NDArray[np.bool_], place: Ints, starts: NDArray[np.intp]) -> Ints:
    return np.minimum.reduceat(np.where(here, place, len(place)), starts)
