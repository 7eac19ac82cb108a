"""What a micro-batch says about the optimisation, as sums that add up over micro-batches and ranks."""

from collections.abc import Iterable

import torch
from torch import Tensor

from app.config import Config
from app.reduce import Sums
from app.tokens import Tokens

# Every key, declared by all micro-batches: ranks then reduce the same vector, whatever each has measured.
KINDS = {
    "entropy": "mean",
    "kl_divergence_inference": "mean",
    "loss/policy": "mean",
    "loss/kl_penalty": "mean",
    "loss/entropy_bonus": "mean",
    "clip/low_fraction": "mean",
    "clip/high_fraction": "mean",
    "clip/dual_fraction": "mean",
    "importance/mean": "mean",
    "importance/max": "max",
    "importance/ess_fraction": "ess",
    "importance/capped_fraction": "mean",
    "importance/masked_fraction": "mean",
    "mismatch/logprob_abs_mean": "mean",
    "mismatch/logprob_abs_max": "max",
    "rollout/bad_logprobs": "sum",
    "tokens/trained": "sum",
}

Statistics = dict[str, tuple[Tensor | float, ...]]
"""Key → the parts that its kind carries, as app.reduce lists them."""


def clip_statistics(batch: Tokens, ratio: Tensor, losses: Tensor, config: Config) -> Statistics:
    """Where a clip binds in the advantage's direction: share of tokens, for gspo of samples."""
    advantages = batch.advantages
    binds: dict[str, Tensor] = {}
    if config.use_ppo_clip or config.algorithm in ("cispo", "gspo"):
        binds["clip/low_fraction"] = (advantages < 0) & (ratio < 1 - config.clip_low)
        binds["clip/high_fraction"] = (advantages > 0) & (ratio > 1 + config.clip_high)
    if config.clip_ratio_c is not None:
        binds["clip/dual_fraction"] = (advantages < 0) & (losses > config.clip_ratio_c * advantages.abs())
    if config.algorithm == "gspo":
        one_each = batch.first_of_sample()
        return {key: ((where & one_each).sum(), one_each.sum()) for key, where in binds.items()}
    return {key: (where.sum(), where.numel()) for key, where in binds.items()}


@torch.no_grad()
def rollout_statistics(batch: Tokens, config: Config) -> Statistics:
    """Entropy, and how far the trainer at the start of the step is from the engine that sampled.

    A log-probability of the engine that is not finite is outside of all of them.
    """
    statistics: Statistics = {}
    if batch.entropy is not None:
        statistics["entropy"] = (batch.entropy.double().sum(), batch.entropy.numel())
    if batch.prox_logprobs is None:
        return statistics
    known = batch.rollout_logprobs.isfinite()
    gap = batch.prox_logprobs[known].double() - batch.rollout_logprobs[known].double()
    statistics["kl_divergence_inference"] = ((gap.exp() - 1 - gap).sum(), gap.numel())
    if batch.current is not None:
        statistics |= _mismatch_statistics(gap[batch.current[known]].abs())
    return statistics | _importance_statistics(gap, config)


def _importance_statistics(gap: Tensor, config: Config) -> Statistics:
    weights = gap.clamp(-config.tis_logprob_clamp, config.tis_logprob_clamp).exp()
    outside = (weights < config.tis_floor) | (weights > config.tis_cap)
    return {
        "importance/mean": (weights.sum(), weights.numel()),
        "importance/max": (_largest(weights),),
        "importance/ess_fraction": (weights.sum(), weights.square().sum(), weights.numel()),
        "importance/capped_fraction": (outside.sum(), outside.numel()),
    }


def _mismatch_statistics(difference: Tensor) -> Statistics:
    return {
        "mismatch/logprob_abs_mean": (difference.sum(), difference.numel()),
        "mismatch/logprob_abs_max": (_largest(difference),),
    }


def _largest(values: Tensor) -> Tensor | float:
    return values.max() if values.numel() else -torch.inf


def to_sums(statistics: Statistics, device: torch.device) -> Sums:
    """Plain numbers, in one transfer from the device."""
    parts = [torch.as_tensor(part, device=device) for key in statistics for part in statistics[key]]
    numbers = iter(torch.stack([part.detach().double() for part in parts]).tolist())
    sums = Sums(KINDS)
    for key, values in statistics.items():
        sums.add(key, KINDS[key], [next(numbers) for _ in values])
    return sums


def total(parts: Iterable[Sums]) -> Sums:
    """The statistics of several micro-batches; of none, all keys with nothing in them."""
    sums = Sums(KINDS)
    for part in parts:
        sums.merge(part)
    return sums
