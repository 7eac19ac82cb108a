"""What a step threw away (contract section 5). Unit: samples. Counts are 0 when nothing was discarded; shares are
absent."""

from functools import partial

import polars as pl

from metrics.numbers import TIE_TOLERANCE, Column
from metrics.population import Population
from metrics.registry import NO_SAMPLE, STATS, metric
from metrics.sample_metrics import OVER_ROWS
from metrics.schema import DISCARDED, Outcome

WHAT = "samples that were generated to the end at the step but not trained: " + ", ".join(DISCARDED)
ZERO = "samples discarded for zero advantage"
discard = partial(metric, section="Discarded", source="discards")
counted = partial(discard, unit="samples", population=WHAT, reduction="count", absent_when="never")
share = partial(discard, unit="%", population=WHAT, reduction="100 × count / count")
lengths = partial(discard, unit="tokens", population=WHAT, reduction=OVER_ROWS, absent_when=NO_SAMPLE, stats=STATS)


class Discards:
    """The discarded samples of a step, and the step's samples they are a share of."""

    def __init__(self, samples: Population) -> None:
        self.all = samples.of(*DISCARDED)
        self.zero_advantage = self.all.of(Outcome.ZERO_ADVANTAGE)
        self.max_async = self.all.of(Outcome.MAX_ASYNC)
        self.num_generated = len(self.all) + len(samples.of(Outcome.TRAINED))
        self.num_canceled = len(samples.of(Outcome.CANCELED))


def percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def sign_percent(discards: Discards, condition: pl.Expr) -> float | None:
    rows = discards.zero_advantage.rows
    return percent(rows.filter(condition).height, rows.height)


@counted("discarded_count")
def discarded_count(discards: Discards) -> float:
    """Samples discarded at the step."""
    return float(len(discards.all))


@counted("discarded_zero_advantage_count")
def discarded_zero_advantage_count(discards: Discards) -> float:
    """Samples discarded because all rewards of their group are equal."""
    return float(len(discards.zero_advantage))


@counted("discarded_max_async_count")
def discarded_max_async_count(discards: Discards) -> float:
    """Samples discarded because they were too many weight updates behind."""
    return float(len(discards.max_async))


@counted("canceled_count", population="samples canceled at the step")
def canceled_count(discards: Discards) -> float:
    """Samples stopped while they were generated (stale, or a shutdown)."""
    return float(discards.num_canceled)


@share("discarded_zero_advantage_pct", absent_when="nothing was discarded")
def discarded_zero_advantage_pct(discards: Discards) -> float | None:
    """Share of the discarded samples that went for zero advantage."""
    return percent(len(discards.zero_advantage), len(discards.all))


@share("discarded_max_async_pct", absent_when="nothing was discarded")
def discarded_max_async_pct(discards: Discards) -> float | None:
    """Share of the discarded samples that went for staleness."""
    return percent(len(discards.max_async), len(discards.all))


@share(
    "discarded_pct_of_generated",
    population="samples of the step that were generated to the end",
    absent_when="no sample was generated to the end",
    lower_is_better=True,
)
def discarded_pct_of_generated(discards: Discards) -> float | None:
    """Discarded samples as a share of discarded + trained ones."""
    return percent(len(discards.all), discards.num_generated)


@share("discarded_zero_advantage_all_zero_pct", population=ZERO, absent_when="there is none")
def discarded_zero_advantage_all_zero_pct(discards: Discards) -> float | None:
    """Share of them whose group's rewards are all 0."""
    return sign_percent(discards, pl.col("reward").abs() <= TIE_TOLERANCE)


@share("discarded_zero_advantage_all_positive_pct", population=ZERO, absent_when="there is none")
def discarded_zero_advantage_all_positive_pct(discards: Discards) -> float | None:
    """Share of them whose group's rewards are all positive."""
    return sign_percent(discards, pl.col("reward") > TIE_TOLERANCE)


@share("discarded_zero_advantage_all_negative_pct", population=ZERO, absent_when="there is none")
def discarded_zero_advantage_all_negative_pct(discards: Discards) -> float | None:
    """Share of them whose group's rewards are all negative."""
    return sign_percent(discards, pl.col("reward") < -TIE_TOLERANCE)


@discard(
    "discarded_zero_advantage_mean_reward",
    unit="reward",
    population=ZERO,
    reduction="mean over samples",
    absent_when="there is none",
)
def discarded_zero_advantage_mean_reward(discards: Discards) -> float | None:
    """Their mean reward."""
    values = discards.zero_advantage.column("reward").values
    return float(values.mean()) if len(values) else None


@lengths("discarded_tokens_prompt")
def discarded_tokens_prompt(discards: Discards) -> Column:
    """Tokens of the prompt of a discarded sample."""
    return discards.all.column("prompt_tokens")


@lengths("discarded_tokens_completion")
def discarded_tokens_completion(discards: Discards) -> Column:
    """Tokens that the policy sampled for a discarded sample."""
    return discards.all.column("completion_tokens")


@lengths("discarded_tokens_total")
def discarded_tokens_total(discards: Discards) -> Column:
    """All tokens of a discarded sample."""
    return discards.all.column("total_tokens")
