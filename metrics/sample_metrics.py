"""What the samples of a step say (contract section 4): reward, advantage, lengths, staleness, the environment's own
numbers."""

from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl

from metrics.numbers import Column, block_statistics, gini_mean, group_std_mean, max_median_ratio_mean, statistics
from metrics.population import Population, finite_column
from metrics.registry import NO_SAMPLE, STATS, Metric, metric

TRAINED = "trained samples of the step"
SCORED = "every scored sample of the step, trained or not"
GENERATED = ("generated/", "generated", SCORED)
PER_ENV = ("reward/<env>/", "reward", "trained samples of the step, of the environment")
OVER_ROWS = "mean, sample standard deviation (ddof 1), min, max over samples"
OVER_GROUPS = "plain mean over groups"
trained = partial(metric, population=TRAINED, source="samples")
spread = partial(trained, reduction=OVER_ROWS, absent_when=NO_SAMPLE, stats=STATS)
over_groups = partial(trained, reduction=OVER_GROUPS)


@spread("reward", section="Reward", unit="reward", under=(PER_ENV, GENERATED))
def reward(samples: Population) -> Column:
    """Total reward of a sample."""
    return samples.column("reward")


@over_groups("reward_gini_mean", section="Reward", unit="0…1", absent_when="no group", under=(PER_ENV, GENERATED))
def reward_gini_mean(samples: Population) -> float | None:
    """Gini coefficient of the rewards within a group: 0 when all are equal, near 1 when one sample has all of it."""
    return gini_mean(samples.column("reward"))


@over_groups(
    "reward_group_std_mean",
    section="Reward",
    unit="reward",
    absent_when="no group of two or more",
    under=(PER_ENV, GENERATED),
)
def reward_group_std_mean(samples: Population) -> float | None:
    """Sample standard deviation of the rewards within a group: what a group-relative advantage can learn from."""
    return group_std_mean(samples.column("reward"))


@spread("advantage", section="Advantage", unit="")
def advantage(samples: Population) -> Column:
    """The value that multiplied the loss of a sample."""
    return samples.column("advantage")


@spread("tokens_prompt", section="Rollouts", unit="tokens", under=(GENERATED,))
def tokens_prompt(samples: Population) -> Column:
    """Tokens of the prompt of a sample."""
    return samples.column("prompt_tokens")


@spread("tokens_completion", section="Rollouts", unit="tokens", under=(GENERATED,))
def tokens_completion(samples: Population) -> Column:
    """Tokens that the policy sampled, summed over its turns."""
    return samples.column("completion_tokens")


@spread("tokens_total", section="Rollouts", unit="tokens", under=(GENERATED,))
def tokens_total(samples: Population) -> Column:
    """All tokens of a sample: prompt, completion and what the environment added."""
    return samples.column("total_tokens")


@trained(
    "stop_reason_length_pct",
    section="Rollouts",
    unit="%",
    reduction="100 × count / count",
    absent_when=NO_SAMPLE,
    healthy=(0.0, 20.0),
    lower_is_better=True,
    under=(GENERATED,),
)
def stop_reason_length_pct(samples: Population) -> float | None:
    """Share of samples with at least one turn that the engine ended for the token limit."""
    turns = samples.rows["truncated_turns"].drop_nulls()
    return 100.0 * int((turns > 0).sum()) / len(turns) if len(turns) else None


@over_groups("group_length_gini_mean", section="Rollouts", unit="0…1", absent_when="no group", under=(GENERATED,))
def group_length_gini_mean(samples: Population) -> float | None:
    """Gini coefficient of the completion lengths within a group."""
    return gini_mean(samples.column("completion_tokens"))


@over_groups(
    "group_length_max_median_ratio_mean",
    section="Rollouts",
    unit="ratio",
    absent_when="no group with a median above 0, and none that is all 0",
    under=(GENERATED,),
)
def group_length_max_median_ratio_mean(samples: Population) -> float | None:
    """Longest completion of a group / its (interpolated) median: how long a group waits for its last sample."""
    return max_median_ratio_mean(samples.column("completion_tokens"))


@spread("off_policy_steps", section="Rollouts", unit="weight updates")
def off_policy_steps(samples: Population) -> Column:
    """Current weights version minus the oldest version among the sample's trained tokens."""
    return samples.column("off_policy_steps")


HAVING = "trained samples of the step that have the value"
SAMPLE_METRIC = Metric(
    key="<name>",
    section="Sample metrics",
    definition="A number that the environment gave with the reward, under the environment's own name.",
    unit="",
    population=HAVING,
    reduction=f"{OVER_ROWS}; gini_mean: Gini coefficient within a group, {OVER_GROUPS}",
    absent_when="no trained sample has it",
    source="samples",
    stats=(*STATS, "gini_mean"),
)
"""Not entered by key: `<name>_mean` would own every key that ends so. A run records the names its samples used."""
SAMPLE_METRIC_OF_ENV = replace(
    SAMPLE_METRIC, key="<env>/<name>", section="<env>", population=f"{HAVING}, of the environment"
)


def scored() -> pl.Expr:
    """A sample is scored when it has a reward, finite or not. One whose reward is absent is not."""
    return pl.col("reward").is_not_null()


def custom_statistics(samples: Population) -> dict[str, dict[str, float]]:
    """Statistics of each of the environment's own numbers, by name."""
    found: dict[str, dict[str, float]] = {}
    for block in samples.blocks():
        good = np.isfinite(block.values).all(axis=1)
        names = np.array(block.names, dtype=object)
        if good.any():
            found |= dict(zip(names[good], block_statistics(block.values[good], block.groups), strict=True))
        for name, values in zip(names[~good], block.values[~good], strict=True):
            found[name] = with_gini(finite_column(values, block.groups))
    return dict(sorted(found.items()))


def with_gini(column: Column) -> dict[str, float]:
    value = gini_mean(column)
    return statistics(column) | ({} if value is None else {"gini_mean": value})
