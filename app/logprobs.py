"""From logits to the log-probabilities and entropies that a loss is made of.

Give these functions only the rows that predict trained tokens: with a large vocabulary the logits are the
largest tensor of a training step.
"""

import torch
from torch import Tensor

ENTROPY_ROWS = 1024  # rows whose softmax is in memory at once when the entropy needs no gradient


def scaled_logits(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """(T, V) logits / temperature in float32 (float64 stays). A temperature for each row is a (T, 1) tensor."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide if isinstance(temperature, float | int) and temperature == 1 else wide / temperature


def target_logprobs(scaled: Tensor, targets: Tensor) -> Tensor:
    """Log softmax of the targets, without keeping a (T, V) softmax for the backward pass."""
    return scaled.gather(-1, targets[:, None])[:, 0] - torch.logsumexp(scaled, dim=-1)


def entropies(scaled: Tensor, *, with_grad: bool = False) -> Tensor:
    """-sum p ln p of each row, in nats; without a gradient in slices, to bound memory."""
    if with_grad:
        return _entropy(scaled)
    with torch.no_grad():
        return torch.cat([_entropy(rows) for rows in scaled.split(ENTROPY_ROWS)])


def _entropy(scaled: Tensor) -> Tensor:
    logprobs = torch.log_softmax(scaled, dim=-1)
    probabilities = logprobs.exp()
    # A logit of -inf has p = 0 and ln p = -inf: their product must be 0, not nan.
    return -(probabilities * logprobs.masked_fill(probabilities == 0, 0.0)).sum(-1)
