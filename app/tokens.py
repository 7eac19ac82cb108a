"""The tokens of one micro-batch as flat vectors, and arithmetic by the sample that they belong to."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Tokens of one micro-batch; every column is a tensor (T,), and every sample in it is whole.

    Log-probabilities are natural logs, of logits / temperature.
    """

    logprobs: Tensor
    """By the weights of this update, with gradient."""
    rollout_logprobs: Tensor
    """The engine's when it sampled the token; nan or an infinity where it gave none."""
    advantages: Tensor
    """Of the token's sample."""
    segments: Tensor
    """Which sample the token belongs to: any integers."""
    trained: Tensor | None = None
    """Bool; None means every token."""
    prox_logprobs: Tensor | None = None
    """By the weights at the start of the step. In a step of one update those are the weights of `logprobs`:
    `logprobs.detach()` is the same without another pass."""
    reference_logprobs: Tensor | None = None
    """By the initial policy."""
    entropy: Tensor | None = None
    """Of the whole distribution, nats; with gradient when there is an entropy bonus."""
    current: Tensor | None = None
    """Bool: the engine sampled the token with the weights that prox_logprobs are from."""

    @property
    def num_sequences(self) -> int:
        """Samples in compact segments."""
        return int(self.segments.max()) + 1 if self.segments.numel() else 0

    def where(self, chosen: Tensor) -> "Tokens":
        """The tokens that a bool vector (T,) chooses, with their samples numbered 0, 1, 2, ..."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Tokens(**{name: column[chosen] for name, column in columns.items() if column is not None}).compact()

    def compact(self) -> "Tokens":
        """The same tokens with their samples numbered 0, 1, 2, ..."""
        return replace(self, segments=torch.unique(self.segments, return_inverse=True)[1])

    def sample_mean(self, values: Tensor, known: Tensor) -> Tensor:
        """(T,): each token gets the mean of its sample's known values, 0 where none is known."""
        num_known = self._sample_sum(known.to(values.dtype))
        return (self._sample_sum(values * known) / num_known.clamp(min=1))[self.segments]

    def sample_size(self) -> Tensor:
        """(T,): how many tokens the token's sample has."""
        return self._sample_sum(torch.ones_like(self.logprobs.detach()))[self.segments]

    def first_of_sample(self) -> Tensor:
        """(T,) bool: one token of each sample."""
        places = torch.arange(self.segments.numel(), device=self.segments.device)
        first = places.new_zeros(self.num_sequences).scatter_reduce(
            0, self.segments, places, "amin", include_self=False
        )
        return places == first[self.segments]

    def _sample_sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.num_sequences).index_add(0, self.segments, values)


@dataclass(frozen=True)
class Denominators:
    """What one optimiser update is divided by: counts over all its micro-batches and ranks, after masking."""

    tokens: int
    sequences: int

    def __add__(self, other: "Denominators") -> "Denominators":
        return Denominators(self.tokens + other.tokens, self.sequences + other.sequences)


def size(tokens: Tokens) -> Denominators:
    """Tokens and samples of a compact micro-batch."""
    return Denominators(tokens.segments.numel(), tokens.num_sequences)


def rollout_gap(logprobs: Tensor, rollout_logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """(logprobs - rollout_logprobs, where that is known).

    A log-probability of the engine that is not finite leaves every ratio: its difference is 0 and not known.
    """
    known = rollout_logprobs.isfinite()
    return logprobs - torch.where(known, rollout_logprobs, logprobs.detach()), known
