"""The learning rate of each optimiser update."""

import math

SHAPES = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate(
    update: int,
    *,
    peak: float,
    total: int,
    schedule: str = "constant",
    warmup: int = 0,
    min_ratio: float = 0.0,
) -> float:
    """The rate that update number `update` uses; updates are counted from 1, `total` and `warmup` in updates.

    Warm-up rises linearly to the peak at update `warmup` and never uses rate 0. From there (without it, from
    update 1) linear and cosine fall to peak * min_ratio at update `total`, and stay there.
    """
    if update < 1:
        raise ValueError(f"update: got {update}, wanted a count from 1")
    if update < warmup:
        return peak * update / warmup
    if schedule == "constant":
        return peak
    top = max(warmup, 1)
    progress = min((update - top) / (total - top), 1.0) if total > top else 0.0
    return peak * (min_ratio + (1.0 - min_ratio) * SHAPES[schedule](progress))
