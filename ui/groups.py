"""The groups of a step: filtered, sorted, in pages, each with its samples in brief."""

from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from metrics import read
from ui.names import FARTHEST
from ui.sample import as_dict, as_text, last_turn

PREVIEW = 240
OVERVIEW = [
    "step", "env", "group_id", "sample_id", "problem_id", "outcome", "outcome_reason", "reward", "advantage",
    "completion_tokens", "total_tokens", "num_turns", "truncated_turns", "off_policy_steps", "stop_reason",
    "prompt", "tags", "sample_metrics",
]  # fmt: skip
SORTS = {
    "group": "group_id",
    "reward": "reward_mean",
    "spread": "reward_std",
    "length": "length_mean",
    "best": "reward_max",
    "worst": "reward_min",
}


class Wanted(BaseModel):
    """A page of the groups of a step. Filters act on samples; `by` names a sample metric to colour them by."""

    model_config = ConfigDict(allow_inf_nan=False)

    run: str
    step: int = Field(ge=0, le=FARTHEST)
    env: str | None = None
    outcome: str | None = None
    """One or several, separated by commas."""
    stop: str | None = None
    tag: str | None = None
    """`key=value`"""
    search: str | None = Field(None, max_length=1000)
    low: float | None = None
    high: float | None = None
    shortest: int | None = Field(None, ge=0, le=FARTHEST)
    longest: int | None = Field(None, ge=0, le=FARTHEST)
    sort: str = "group"
    descending: bool = False
    by: str = ""
    offset: int = Field(0, ge=0, le=FARTHEST)
    limit: int = Field(40, ge=1, le=400)


def page(directory: Path, wanted: Wanted) -> dict[str, Any]:
    """One page, and what the filters can offer at this step."""
    rows = rows_of_step(directory, wanted)
    envs = _counts(rows, "env")  # before one of them is chosen, so that another can be chosen instead
    rows = rows.filter(pl.col("env") == wanted.env) if wanted.env else rows
    facts = {"envs": envs, **step_facts(rows)}
    rows = filtered(with_value(rows, wanted.by), wanted)
    return {"step": wanted.step, **facts, **page_of_groups(rows, wanted)}


def rows_of_step(directory: Path, wanted: Wanted) -> pl.DataFrame:
    outcomes = wanted.outcome.split(",") if wanted.outcome else None
    where = {"step": wanted.step, "outcome": outcomes, "search": wanted.search}
    frame, _ = read.samples(directory, **where, columns=OVERVIEW, limit=None)  # type: ignore[arg-type]
    return frame


def step_facts(rows: pl.DataFrame) -> dict[str, Any]:
    """What the filters can offer, and the rewards of the step for its histogram."""
    tags = sorted({f"{key}={value}" for tags in rows["tags"].to_list() for key, value in as_dict(tags).items()})
    rewards = rows.select("env", "reward").drop_nulls()
    return {
        "outcomes": _counts(rows, "outcome"),
        "reasons": _counts(rows.filter(pl.col("outcome_reason").is_not_null()), "outcome_reason", 20),
        "stops": _counts(rows, "stop_reason"),
        "tags": tags[:200],
        "rewards": {
            str(env[0]): [round(value, 4) for value in part["reward"].to_list()[:10_000]]
            for env, part in rewards.group_by("env", maintain_order=True)
        },
        "by_outcome": by_outcome(rows),
        "metrics": metric_names(rows),
    }


def metric_names(rows: pl.DataFrame) -> list[str]:
    return sorted({name for metrics in rows["sample_metrics"].to_list() for name in as_dict(metrics)})[:200]


def with_value(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """The column `value`: the reward, or a metric of the sample; absent stays absent."""
    if not by:
        return rows.with_columns(value=pl.col("reward"))
    values = [as_dict(metrics).get(by) for metrics in rows["sample_metrics"].to_list()]
    return rows.with_columns(pl.Series("value", values, pl.Float64))


def by_outcome(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Whether what was discarded differs from what was trained: reward and length by outcome."""
    if not rows.height:
        return []
    return (
        rows.group_by("outcome")
        .agg(
            pl.len().alias("count"),
            pl.col("reward").mean().alias("reward"),
            pl.col("completion_tokens").mean().alias("length"),
            ((pl.col("truncated_turns") > 0).mean() * 100).alias("truncated_pct"),
        )
        .sort("count", descending=True)
        .to_dicts()
    )


def _counts(rows: pl.DataFrame, column: str, most: int = 50) -> dict[str, int]:
    counted = rows.drop_nulls(column).group_by(column).len().sort("len", column, descending=[True, False])
    return {str(name): int(count) for name, count in counted.head(most).iter_rows()}


def filtered(rows: pl.DataFrame, wanted: Wanted) -> pl.DataFrame:
    bounds = {"reward": (wanted.low, wanted.high), "completion_tokens": (wanted.shortest, wanted.longest)}
    for column, (low, high) in bounds.items():
        if low is not None:
            rows = rows.filter(pl.col(column) >= low)
        if high is not None:
            rows = rows.filter(pl.col(column) <= high)
    if wanted.stop:
        rows = rows.filter(pl.col("stop_reason") == wanted.stop)
    return rows.filter(has_tag(rows, wanted.tag)) if wanted.tag else rows


def has_tag(rows: pl.DataFrame, tag: str) -> pl.Series:
    key, _, value = tag.partition("=")
    return pl.Series([str(as_dict(tags).get(key)) == value for tags in rows["tags"].to_list()], dtype=pl.Boolean)


def page_of_groups(rows: pl.DataFrame, wanted: Wanted) -> dict[str, Any]:
    grouped = rows.group_by("group_id").agg(
        pl.len().alias("count"),
        pl.col("reward").mean().alias("reward_mean"),
        pl.col("reward").std().alias("reward_std"),
        pl.col("reward").min().alias("reward_min"),
        pl.col("reward").max().alias("reward_max"),
        pl.col("completion_tokens").mean().alias("length_mean"),
    )
    order = grouped.sort(SORTS[wanted.sort], "group_id", descending=[wanted.descending, False], nulls_last=True)
    shown = order.slice(wanted.offset, wanted.limit)
    inside = rows.filter(pl.col("group_id").is_in(shown["group_id"].implode())).sort("sample_id")
    members = {key[0]: part for key, part in inside.group_by("group_id")}
    groups = [_group(row, members[row["group_id"]]) for row in shown.iter_rows(named=True)]
    return {"num_groups": grouped.height, "num_samples": rows.height, "offset": wanted.offset, "groups": groups}


def _group(summary: dict[str, Any], members: pl.DataFrame) -> dict[str, Any]:
    first = members.row(0, named=True)
    prompt = as_text(first["prompt"])
    shown = [
        "sample_id", "outcome", "outcome_reason", "reward", "value", "advantage", "completion_tokens",
        "truncated_turns", "stop_reason", "off_policy_steps",
    ]  # fmt: skip
    return {
        **summary,
        "env": first["env"],
        "problem_id": first["problem_id"],
        "prompt": last_turn(prompt)[:PREVIEW],
        "prompt_length": len(prompt),
        "samples": members.select(shown).to_dicts(),
    }
