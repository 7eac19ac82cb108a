"""What selection throws away. Pure: a frame of samples in, a table of drop rates out."""

from itertools import pairwise

import polars as pl

from metrics.schema import DISCARDED, Outcome

LENGTHS = (0, 16, 64, 256, 1_024, 4_096, 16_384)
"""Lower bounds of the buckets of completion length, in tokens."""
REASONS = tuple(str(reason) for reason in DISCARDED)


def drop_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """One row for each (by, bucket): generated, dropped, drop_pct, each reason's count, mean reward of all and of
    trained.

    `by` is "all", "environment" or "length". Only samples that were generated to the end take part.
    """
    parts = counted(samples)
    named = [
        parts.with_columns(by=pl.lit("all"), bucket=pl.lit("all"), order=pl.lit(0, pl.Int32)),
        parts.with_columns(by=pl.lit("environment"), bucket=pl.col("env"), order=pl.lit(0, pl.Int32)),
        parts.with_columns(by=pl.lit("length"), bucket=bucket_name()),
    ]
    trained = pl.col("outcome") == Outcome.TRAINED
    dropped = pl.col("rows").filter(~trained).sum()
    return (
        pl.concat(named, how="diagonal")
        .group_by("by", "order", "bucket")
        .agg(
            pl.col("rows").sum().alias("generated"),
            dropped.alias("dropped"),
            (100.0 * dropped / pl.col("rows").sum()).alias("drop_pct"),
            *[pl.col("rows").filter(pl.col("outcome") == reason).sum().alias(reason) for reason in REASONS],
            mean_of(pl.lit(True)).alias("reward_mean_generated"),
            mean_of(trained).alias("reward_mean_trained"),
        )
        .sort("by", "order", "bucket")
        .drop("order")
    )


def counted(samples: pl.DataFrame) -> pl.DataFrame:
    """Rows, finite rewards and their sum by environment, length and outcome: a run of millions in a few lines."""
    finite = pl.col("reward").is_finite()
    order = pl.sum_horizontal((pl.col("completion_tokens") >= low).cast(pl.Int32) for low in LENGTHS)
    return (
        samples.filter(pl.col("outcome").is_in([str(Outcome.TRAINED), *REASONS]))
        .group_by("env", "outcome", order=order)
        .agg(
            pl.len().alias("rows"),
            finite.sum().alias("rewards"),
            pl.col("reward").filter(finite).sum().alias("reward_sum"),
        )
    )


def mean_of(which: pl.Expr) -> pl.Expr:
    """The mean finite reward of these rows; absent where there is none."""
    rewards = pl.col("rewards").filter(which).sum()
    return pl.when(rewards > 0).then(pl.col("reward_sum").filter(which).sum() / rewards)


def bucket_name() -> pl.Expr:
    names = [f"{low} to {high - 1}" for low, high in pairwise(LENGTHS)] + [f"{LENGTHS[-1]} and more"]
    return pl.col("order").replace_strict(dict(enumerate(names, start=1)), return_dtype=pl.String)
