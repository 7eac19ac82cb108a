"""How much better each sample was than its siblings. Pure arithmetic in float64, no tensors.

grpo, cispo, gspo, sapo   (r - mean) / (std + 1e-4), over the group or, batch-normalised, over the step
reinforce_pp              r - mean of the group, then / (std + 1e-4) over the step
rloo                      r - mean of the other n - 1            (arXiv 2402.14740)
dr_grpo                   r - mean of the group                  (arXiv 2503.20783)
"""

import math
from collections.abc import Sequence
from typing import TypeGuard

EPS = 1e-4
TIE = 1e-8
LARGEST = 1e300  # beyond it sums of rewards overflow; such a reward counts as not finite

BATCH_ONLY = ("reinforce_pp",)
CENTRED_ONLY = ("rloo", "dr_grpo")
ALGORITHMS = ("grpo", "rloo", "reinforce_pp", "dr_grpo", "cispo", "gspo", "sapo")


def advantages(
    rewards: Sequence[float | None], groups: Sequence[int], algorithm: str, advantage_norm: str
) -> list[float | None]:
    """One advantage per reward, in the order given; groups may arrive interleaved.

    A reward that is None or not finite gets None and is outside its group's mean and deviation; a caller
    gives None for a sample without a trained token. advantage_norm: 'group' or 'batch', for the first four.
    """
    _check(rewards, groups, algorithm, advantage_norm)
    by_group: dict[int, dict[int, float]] = {}
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if usable(reward):
            by_group.setdefault(group, {})[i] = float(reward)
    over_step = algorithm in BATCH_ONLY or (algorithm not in CENTRED_ONLY and advantage_norm == "batch")
    result: list[float | None] = [None] * len(rewards)
    for members in by_group.values():
        for i, value in zip(members, _of_group([*members.values()], algorithm, over_step), strict=True):
            result[i] = value
    return _normalised_over_step(result) if over_step else result


def formula(algorithm: str, advantage_norm: str) -> str:
    """What `advantages` does with a reward r, in a line for people."""
    if algorithm == "rloo":
        return "r − mean of the group's other rewards"
    if algorithm == "dr_grpo":
        return "r − mean of the group"
    if algorithm in BATCH_ONLY or advantage_norm == "batch":
        return f"a = r − mean of the group, then (a − mean) / (standard deviation + {EPS:g}) over the step"
    return f"(r − mean) / (standard deviation + {EPS:g}) of the group"


def tied(rewards: Sequence[float | None]) -> bool:
    """Whether a group teaches nothing: two or more finite rewards, all of them equal (max - min <= 1e-8)."""
    values = [float(reward) for reward in rewards if usable(reward)]
    return len(values) > 1 and max(values) - min(values) <= TIE


def usable(reward: float | None) -> TypeGuard[float]:
    """Whether a reward can be averaged: a finite number."""
    return reward is not None and abs(reward) < LARGEST  # false for nan


def _check(rewards: Sequence[float | None], groups: Sequence[int], algorithm: str, advantage_norm: str) -> None:
    if len(rewards) != len(groups):
        raise ValueError(f"got {len(rewards)} rewards and {len(groups)} group ids, wanted one id per reward")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: got {algorithm!r}, wanted one of {', '.join(ALGORITHMS)}")
    if advantage_norm not in ("group", "batch", "none"):
        raise ValueError(f"advantage_norm: got {advantage_norm!r}, wanted group, batch or none")


def _of_group(values: list[float], algorithm: str, over_step: bool) -> list[float]:
    """The group's part of the formula; `values` are finite and at least one."""
    if len(values) == 1:
        return values if over_step else [0.0]
    if tied(values):
        return [0.0] * len(values)
    centred = _centred(values)
    if over_step or algorithm == "dr_grpo":
        return centred
    if algorithm == "rloo":
        return [value * len(values) / (len(values) - 1) for value in centred]
    return _divided(centred)


def _normalised_over_step(values: list[float | None]) -> list[float | None]:
    """(a - mean) / (std + 1e-4) over the values that are present."""
    present = [value for value in values if value is not None]
    if not present:
        return values
    flat = len(present) < 2 or tied(present)
    normal = iter([0.0] * len(present) if flat else _divided(_centred(present)))
    return [None if value is None else next(normal) for value in values]


def _centred(values: list[float]) -> list[float]:
    mean = math.fsum(value / len(values) for value in values)
    return [value - mean for value in values]


def _divided(centred: list[float]) -> list[float]:
    """Divided by (sample standard deviation + 1e-4); scaled by the largest, so that no square overflows."""
    largest = max(map(abs, centred))
    squares = math.fsum((value / largest) ** 2 for value in centred)
    std = largest * math.sqrt(squares / (len(centred) - 1))
    return [value / (std + EPS) for value in centred]
