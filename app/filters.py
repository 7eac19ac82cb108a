"""Degenerate completions: which ones leave the loss, and what a long one costs. Pure: no Ray, no torch.

overlong     cut by the token limit (DAPO's overlong filtering, arXiv 2503.14476, section 3.4)
repetition   a long run of tokens that were each nearly certain (MiniMax-M1, arXiv 2506.13585, section 3.2)
gibberish    a rare token drawn although it was less likely than by pure chance (CWM, arXiv 2510.02387, section 5.2)

What a filter takes out has no trained token: it is outside its group's mean, too.
"""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from app.config_section import Count, CountOrZero, NotNegative, Positive, Section

RAW_REWARD = "reward_before_overlong_penalty"
"""Sample metric: the environment's reward, where the overlong penalty is on."""


class OverlongPenaltyConfig(Section):
    max: Count
    """Length at which the whole penalty applies, in sampled tokens."""
    buffer: CountOrZero
    """Tokens before `max` over which the penalty grows from 0."""
    factor: Positive = 1.0
    """The whole penalty: what the reward loses."""


class RepetitionConfig(Section):
    window: Count = 3000
    """Tokens in a row."""
    probability: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Each of them was sampled with a probability above this."""


class GibberishConfig(Section):
    rare_token_id: CountOrZero = 100_000
    """Tokens with a higher id are rare: vocabularies list merges by frequency."""
    logprob_offset: NotNegative = 2.0
    """How far its log-probability is below that of a uniform choice, in nats."""


class FiltersConfig(Section):
    overlong: bool = False
    """Leave out completions that the token limit cut."""
    overlong_penalty: OverlongPenaltyConfig | None = None
    """Lower the reward of completions that come near a length; null is off."""
    repetition: RepetitionConfig | None = None
    """Leave out completions that repeat themselves; null is off."""
    gibberish: GibberishConfig | None = None
    """Leave out completions with a token that makes no sense; null is off."""

    @property
    def judge(self) -> bool:
        """Whether any completion can be left out."""
        return self.overlong or self.repetition is not None or self.gibberish is not None


def reason(
    filters: FiltersConfig,
    is_truncated: bool,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    vocab_size: int | None = None,
) -> str | None:
    """Why a completion is left out of the loss, or None. token_ids, logprobs: of its sampled tokens, in order."""
    if filters.overlong and is_truncated:
        return f"overlong: cut after {len(token_ids)} tokens"
    if filters.repetition is not None:
        end = repetition_end(logprobs, filters.repetition.window, filters.repetition.probability)
        if end is not None:
            return f"repetition: {filters.repetition.window} nearly certain tokens in a row before token {end}"
    if filters.gibberish is not None:
        if vocab_size is None:
            raise ValueError("the gibberish filter needs the size of the vocabulary, got None")
        place = gibberish_place(token_ids, logprobs, vocab_size, filters.gibberish)
        if place is not None:
            return f"gibberish: token {place} (id {token_ids[place]}) was rarer than chance"
    return None


def repetition_end(logprobs: Sequence[float], window: int, probability: float) -> int | None:
    """Where the first `window` tokens in a row, each more likely than `probability`, end; None without any."""
    limit, run = math.log(probability), 0
    for place, logprob in enumerate(logprobs, start=1):
        run = run + 1 if logprob > limit else 0
        if run >= window:
            return place
    return None


def gibberish_place(
    token_ids: Sequence[int], logprobs: Sequence[float], vocab_size: int, config: GibberishConfig
) -> int | None:
    """The first token with a rare id and a log-probability below -ln(vocab_size) - offset; None without any."""
    limit = -math.log(vocab_size) - config.logprob_offset
    pairs = enumerate(zip(token_ids, logprobs, strict=True))
    return next((i for i, (token, lp) in pairs if token > config.rare_token_id and lp < limit), None)


def overlong_penalty(num_tokens: int, max_tokens: int, buffer: int, factor: float = 1.0) -> float:
    """0 up to max_tokens - buffer, then linearly down to -factor. DAPO, arXiv 2503.14476, eq. 13."""
    over = num_tokens - (max_tokens - buffer)
    if over <= 0:
        return 0.0
    return -factor * over / buffer if over < buffer else -factor
