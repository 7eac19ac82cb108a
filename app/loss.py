"""The policy objective: from log-probabilities and advantages to one scalar and its statistics.

Read `policy_loss` first. Tokens that are not trained are dropped before any arithmetic, so nothing in a
prompt or in padding can reach a loss, a count or a gradient; what is left is N tokens in flat vectors.

    lp       now, with gradient            lp_prox  the trainer's at the start of the step
    lp_beh   the engine's when sampling    A        the advantage of the token's sample
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from app.config import Config
from app.loss_statistics import Statistics, clip_statistics, rollout_statistics, to_sums
from app.reduce import Sums
from app.tokens import Denominators, Tokens, rollout_gap, size

LOG_RATIO_LIMIT = 20.0


def needs_prox_pass(config: Config) -> bool:
    """Whether lp_prox must be computed in a pass of its own, before the step's first update."""
    return config.minibatches > 1 or config.seq_is_masking is not None


def needs_reference(config: Config) -> bool:
    """Whether the initial policy's log-probabilities are used."""
    return config.kl_penalty_tau > 0 and config.kl_reference == "initial"


def count(tokens: Tokens, config: Config) -> Denominators:
    """This micro-batch's share of the update's denominators; with `seq_is_masking` it needs prox_logprobs."""
    return size(_kept(tokens, config)[0])


def policy_loss(tokens: Tokens, config: Config, denominators: Denominators) -> tuple[Tensor, Sums]:
    """This micro-batch's part of the update's objective, and its statistics.

    Each part is divided by the update's global denominators, so those of all micro-batches and ranks add up to
    the objective, however the batch is cut. FSDP averages gradients over ranks: multiply by world size.
    Without a trained token the loss is 0, and so are its gradients.
    """
    batch, statistics = _kept(tokens, config)
    ratio, losses, weights = _token_losses(batch, config)
    statistics |= clip_statistics(batch, ratio, losses, config) | rollout_statistics(batch, config)
    terms = {"loss/policy": (_modified(losses, batch.advantages, weights, config), 1.0)}
    terms |= _extra_terms(batch, config)
    totals = {key: _total(values, batch, config) for key, (values, _) in terms.items()}
    statistics |= {key: (value, _divisor(size(batch), config)) for key, value in totals.items()}
    objective = torch.stack([coefficient * totals[key] for key, (_, coefficient) in terms.items()]).sum()
    divisor = _divisor(denominators, config)
    if divisor == 0 and batch.segments.numel():
        raise ValueError(f"got {denominators} for a micro-batch of {size(batch)}, wanted the sum over all of them")
    return objective / max(divisor, 1), to_sums(statistics, objective.device)


# The token losses, all (N,). ratio: (N,) exp(lp - reference) of the token or, for gspo, of its sample.


def clipped(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """max(-ratio A, -clip(ratio, 1 - clip_low, 1 + clip_high) A): PPO, arXiv 1707.06347, eq. 7."""
    return torch.maximum(-ratio * advantages, -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def policy_gradient(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: Config) -> Tensor:
    """Clipped; or -ratio A with the ratio taken to lp itself, whose gradient is that of -lp A."""
    if config.use_ppo_clip:
        return clipped(ratio, advantages, config.clip_low, config.clip_high)
    return -ratio * advantages


def cispo(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: Config) -> Tensor:
    """-sg(clip(ratio)) lp A: a token's weight is bounded, its gradient kept. MiniMax-M1, arXiv 2506.13585."""
    return -ratio.detach().clamp(1 - config.clip_low, 1 + config.clip_high) * logprobs * advantages


def gspo(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: Config) -> Tensor:
    """Clipped, with its sample's one ratio on each token. arXiv 2507.18071, eq. 5 and 7."""
    return clipped(ratio, advantages, config.clip_low, config.clip_high)


def sapo(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: Config) -> Tensor:
    """-(4 / tau) sigmoid(tau (ratio - 1)) A: a gate for a clip, tau by the sign of A. arXiv 2511.20347."""
    tau = torch.full_like(advantages, config.sapo_tau_neg).masked_fill(advantages > 0, config.sapo_tau_pos)
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages


TokenLoss = Callable[[Tensor, Tensor, Tensor, Config], Tensor]
LOSSES: dict[str, TokenLoss] = {
    "grpo": policy_gradient,
    "rloo": policy_gradient,
    "reinforce_pp": policy_gradient,
    "dr_grpo": policy_gradient,
    "cispo": cispo,
    "gspo": gspo,
    "sapo": sapo,
}


# Modifiers, in the order in which they apply.


def sequence_mask(tokens: Tokens, low: float, high: float) -> Tensor:
    """(N,) bool: whether low <= exp(mean of lp_prox - lp_beh over the token's sample) <= high."""
    gap, known = rollout_gap(_given(tokens.prox_logprobs, "seq_is_masking"), tokens.rollout_logprobs)
    ratio = _exp(tokens.sample_mean(gap, known))
    return (ratio >= low) & (ratio <= high)


def dual_clip(losses: Tensor, advantages: Tensor, c: float) -> Tensor:
    """Where A < 0 the loss is at most c |A|. arXiv 1912.09729."""
    return torch.where(advantages < 0, torch.minimum(losses, c * advantages.abs()), losses)


def importance_correction(weights: Tensor, config: Config) -> Tensor:
    """(N,) what the losses are multiplied by: w within [floor, cap]; icepop: 0 where it is outside."""
    bounded = weights.clamp(config.tis_floor, config.tis_cap)
    if config.tis_mode == "truncate":
        return bounded
    return torch.where(bounded == weights, weights, 0.0)


# Estimators of KL(policy || reference); gap: (N,) log p - log reference of tokens that the policy sampled.


def k1(gap: Tensor) -> Tensor:
    """Unbiased and signed. As a loss its gradient is zero in expectation."""
    return gap


def k2(gap: Tensor) -> Tensor:
    """Half the square. As a loss it has the gradient of the divergence, on-policy."""
    return gap.square() / 2


def k3(gap: Tensor) -> Tensor:
    """exp(-gap) - 1 + gap: unbiased, never negative, heavy-tailed. joschu.net/blog/kl-approx.html."""
    return _exp(-gap) - 1 + gap


KL: dict[str, Callable[[Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


# The parts of policy_loss.


def _kept(tokens: Tokens, config: Config) -> tuple[Tokens, Statistics]:
    """Trained tokens of samples that are not masked; and what was bad or masked."""
    batch = tokens.compact() if tokens.trained is None else tokens.where(tokens.trained)
    batch = replace(batch, advantages=batch.advantages.to(batch.logprobs.dtype))
    statistics: Statistics = {"rollout/bad_logprobs": ((~batch.rollout_logprobs.isfinite()).sum(),)}
    if config.seq_is_masking is not None:
        num_before = batch.num_sequences
        batch = batch.where(sequence_mask(batch, config.seq_is_masking.low, config.seq_is_masking.high))
        statistics["importance/masked_fraction"] = (num_before - batch.num_sequences, num_before)
    return batch, statistics | {"tokens/trained": (batch.segments.numel(),)}


def _token_losses(batch: Tokens, config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """(ratio, loss, importance weight) of each token, before any modifier."""
    gap, known = _log_ratio(batch, config)
    ratio = _exp(batch.sample_mean(gap, known) if config.algorithm == "gspo" else gap)
    losses = LOSSES[config.algorithm](ratio, batch.logprobs, batch.advantages, config)
    return ratio, losses, _importance(batch, config) if config.use_tis else torch.ones_like(losses)


def _log_ratio(batch: Tokens, config: Config) -> tuple[Tensor, Tensor]:
    """(lp - reference, where it is known). Unclipped, the reference is lp itself, for its gradient."""
    now = batch.logprobs
    has_reference = config.use_ppo_clip or config.algorithm in ("cispo", "gspo", "sapo")
    if has_reference and config.ppo_clip_ref_logprobs == "rollout":
        return rollout_gap(now, batch.rollout_logprobs)
    reference = _given(batch.prox_logprobs, f"{config.algorithm}'s ratio") if has_reference else now
    return now - reference.detach(), torch.ones_like(now, dtype=torch.bool)


def _importance(batch: Tokens, config: Config) -> Tensor:
    """(N,) w = exp(lp_prox - lp_beh), the difference clamped; without gradient."""
    gap, _ = rollout_gap(_given(batch.prox_logprobs, "use_tis").detach(), batch.rollout_logprobs)
    return _exp(gap, config.tis_logprob_clamp)


def _modified(losses: Tensor, advantages: Tensor, weights: Tensor, config: Config) -> Tensor:
    if config.clip_ratio_c is not None:
        losses = dual_clip(losses, advantages, config.clip_ratio_c)
    return losses * importance_correction(weights, config) if config.use_tis else losses


def _extra_terms(batch: Tokens, config: Config) -> dict[str, tuple[Tensor, float]]:
    """KL penalty and entropy bonus: key → (values of the tokens, coefficient in the objective)."""
    terms = {}
    if config.kl_penalty_tau > 0:
        gap = (
            batch.logprobs - _given(batch.reference_logprobs, "kl_reference: initial").detach()
            if config.kl_reference == "initial"
            else rollout_gap(batch.logprobs, batch.rollout_logprobs)[0]
        )
        terms["loss/kl_penalty"] = (KL[config.kl_estimator](gap), config.kl_penalty_tau)
    if config.entropy_coef > 0:
        terms["loss/entropy_bonus"] = (_given(batch.entropy, "entropy_coef"), -config.entropy_coef)
    return terms


def _total(values: Tensor, batch: Tokens, config: Config) -> Tensor:
    """The numerator of the aggregation: a sum over tokens, or over samples of their token means."""
    return (values / batch.sample_size() if config.aggregation == "sequence_mean" else values).sum()


def _divisor(counts: Denominators, config: Config) -> int:
    """token_mean: tokens; sequence_mean: samples; token_sum_norm: samples x max_tokens, a constant."""
    if config.aggregation == "token_mean":
        return counts.tokens
    return counts.sequences * (config.max_tokens if config.aggregation == "token_sum_norm" else 1)


def _exp(gap: Tensor, limit: float = LOG_RATIO_LIMIT) -> Tensor:
    """exp of a clamped difference of log-probabilities: infinity times an advantage of 0 would be nan."""
    return gap.clamp(-limit, limit).exp()


def _given(column: Tensor | None, needed_by: str) -> Tensor:
    if column is None:
        raise ValueError(f"{needed_by} needs a column of Tokens that is None")
    return column
