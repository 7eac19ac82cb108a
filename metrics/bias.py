"""What selection throws away. Pure: a frame of samples in, a table of drop rates out."""

from itertools import pairwise

import polars as pl

from metrics.schema import DISCARDED, Outcome

LENGTHS = (0, 16, 64, 256, 1_024, 4_096, 16_384)
"""Lower bounds of the buckets of completion length, in tokens."""


def drop_rates(samples: pl.DataFrame) -> pl.DataFrame:
    """One row for each (by, bucket): generated, dropped, drop_pct, each reason's count, mean reward of all and of
    trained.

    `by` is "all", "environment" or "length". Only samples that were generated to the end take part.
    """
    rows = samples.filter(pl.col("outcome").is_in([str(Outcome.TRAINED), *(str(one) for one in DISCARDED)]))
    named = [
        rows.with_columns(by=pl.lit("all"), bucket=pl.lit("all"), order=pl.lit(0)),
        rows.with_columns(by=pl.lit("environment"), bucket=pl.col("env"), order=pl.lit(0)),
        rows.with_columns(
            by=pl.lit("length"),
            bucket=length_bucket(),
            order=sum((pl.col("completion_tokens") >= low).cast(pl.Int32) for low in LENGTHS),
        ),
    ]
    dropped = pl.col("outcome") != Outcome.TRAINED
    return (
        pl.concat(named)
        .group_by("by", "order", "bucket")
        .agg(
            pl.len().alias("generated"),
            dropped.sum().alias("dropped"),
            (100.0 * dropped.mean()).alias("drop_pct"),
            *[(pl.col("outcome") == str(reason)).sum().alias(str(reason)) for reason in DISCARDED],
            pl.col("reward").filter(pl.col("reward").is_finite()).mean().alias("reward_mean_generated"),
            pl.col("reward").filter(pl.col("reward").is_finite() & ~dropped).mean().alias("reward_mean_trained"),
        )
        .sort("by", "order", "bucket")
        .drop("order")
    )


def length_bucket() -> pl.Expr:
    bucket = pl.lit(f"{LENGTHS[-1]} and more")
    for low, high in reversed(list(pairwise(LENGTHS))):
        bucket = pl.when(pl.col("completion_tokens") < high).then(pl.lit(f"{low} to {high - 1}")).otherwise(bucket)
    return bucket
