"""Routes for samples: the groups of a step, one sample with all its parts, and the rest of a long text."""

import json
from pathlib import Path
from typing import Any

import polars as pl
from fastapi import APIRouter, HTTPException, Query, Response

from metrics import read
from ui.names import run_dir
from ui.replies import reply
from ui.tokens import pieces

CLIP = 20_000
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
TEXTS = ("prompt", "completion")
PER_TOKEN = ("token_ids", "trained_mask", "rollout_logprobs", "trainer_logprobs", "versions")


def routes(root: Path) -> APIRouter:
    api = APIRouter()

    @api.get("/bias")
    def bias(run: str) -> Response:
        """What selection throws away: drop rates by environment and by length of the completion."""
        return reply({"rows": read.bias(run_dir(root, run)).to_dicts()})

    @api.get("/groups")
    def groups(
        run: str,
        step: int,
        env: str | None = None,
        outcome: str | None = None,
        stop: str | None = None,
        tag: str | None = None,
        search: str | None = None,
        low: float | None = None,
        high: float | None = None,
        shortest: int | None = None,
        longest: int | None = None,
        sort: str = "group",
        descending: bool = False,
        by: str = "",
        offset: int = Query(0, ge=0),
        limit: int = Query(40, ge=1, le=400),
    ) -> Response:
        """One page of the groups of a step, each with its samples in brief; filters act on samples.

        `by` names a sample metric to colour samples by in place of the reward.
        """
        if sort not in SORTS:
            raise HTTPException(400, f"sort {sort[:40]!r}: one of {', '.join(SORTS)}")
        outcomes = outcome.split(",") if outcome else None
        rows = rows_of_step(run_dir(root, run), step, env, outcomes, search)
        facts = step_facts(rows)
        rows = with_value(rows, by)
        rows = filtered(rows, stop, tag, (low, high), (shortest, longest))
        return reply({"step": step, **facts, **page_of_groups(rows, SORTS[sort], descending, offset, limit)})

    @api.get("/sample")
    def sample(run: str, step: int, sample_id: int, outcome: str | None = None, attempt: int | None = None) -> Response:
        """Everything about one sample; long texts are clipped and say how long they are.

        Evaluated completions are numbered on their own: `outcome=eval` looks among them.
        """
        directory = run_dir(root, run)
        frame, _ = read.samples(
            directory, step=step, sample_id=sample_id, outcome=_table(outcome), attempt=attempt, limit=1
        )
        if not frame.height:
            raise HTTPException(404, f"run {run!r}: step {step} has no sample {sample_id}")
        return reply(whole_sample(directory, frame.row(0, named=True)))

    @api.get("/text")
    def text(
        run: str,
        step: int,
        sample_id: int,
        field: str,
        outcome: str | None = None,
        offset: int = Query(0, ge=0),
        limit: int = Query(200_000, ge=1, le=4_000_000),
    ) -> Response:
        """A stretch of a prompt or a completion that was too long to send at once."""
        if field not in TEXTS:
            raise HTTPException(400, f"field {field[:40]!r}: one of {', '.join(TEXTS)}")
        frame, _ = read.samples(
            run_dir(root, run), step=step, sample_id=sample_id, outcome=_table(outcome), columns=[field], limit=1
        )
        if not frame.height:
            raise HTTPException(404, f"run {run!r}: step {step} has no sample {sample_id}")
        value = as_text(frame.item(0, 0))
        return reply({"text": value[offset : offset + limit], "offset": offset, "length": len(value)})

    @api.get("/samples_file")
    def samples_file(run: str, step: int, outcome: str | None = None) -> Response:
        """The samples of a step as JSON lines; `</` is written so that no reader can take it for markup."""
        frame, _ = read.samples(
            run_dir(root, run), step=step, outcome=outcome.split(",") if outcome else None, limit=None
        )
        lines = [bytes(reply(plain_row(row)).body) for row in frame.iter_rows(named=True)]
        body = b"\n".join(lines).replace(b"</", b"<\\/")
        headers = {"Content-Disposition": f'attachment; filename="samples-step-{step}.jsonl"'}
        return Response(body, media_type="application/x-ndjson", headers=headers)

    return api


def _table(outcome: str | None) -> str | None:
    return "eval" if outcome == "eval" else None


def rows_of_step(
    directory: Path, step: int, env: str | None, outcomes: list[str] | None, search: str | None
) -> pl.DataFrame:
    frame, _ = read.samples(
        directory, step=step, env=env, outcome=outcomes, search=search, columns=OVERVIEW, limit=None
    )
    return frame


def step_facts(rows: pl.DataFrame) -> dict[str, Any]:
    """What the filters can offer, and the rewards of the step for its histogram."""
    tags = sorted({f"{key}={value}" for tags in rows["tags"].to_list() for key, value in as_dict(tags).items()})
    rewards = rows.select("env", "reward").drop_nulls()
    return {
        "outcomes": _counts(rows, "outcome"),
        "reasons": _counts(rows.filter(pl.col("outcome_reason").is_not_null()), "outcome_reason", 20),
        "envs": _counts(rows, "env"),
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


def filtered(
    rows: pl.DataFrame,
    stop: str | None,
    tag: str | None,
    reward: tuple[float | None, float | None],
    length: tuple[int | None, int | None],
) -> pl.DataFrame:
    if stop:
        rows = rows.filter(pl.col("stop_reason") == stop)
    for column, (low, high) in (("reward", reward), ("completion_tokens", length)):
        if low is not None:
            rows = rows.filter(pl.col(column) >= low)
        if high is not None:
            rows = rows.filter(pl.col(column) <= high)
    if tag:
        key, _, value = tag.partition("=")
        has = [str(as_dict(tags).get(key)) == value for tags in rows["tags"].to_list()]
        rows = rows.filter(pl.Series(has, dtype=pl.Boolean))
    return rows


def page_of_groups(rows: pl.DataFrame, sort: str, descending: bool, offset: int, limit: int) -> dict[str, Any]:
    grouped = rows.group_by("group_id").agg(
        pl.len().alias("count"),
        pl.col("reward").mean().alias("reward_mean"),
        pl.col("reward").std().alias("reward_std"),
        pl.col("reward").min().alias("reward_min"),
        pl.col("reward").max().alias("reward_max"),
        pl.col("completion_tokens").mean().alias("length_mean"),
    )
    order = grouped.sort(sort, "group_id", descending=[descending, False], nulls_last=True)
    page = order.slice(offset, limit)
    inside = rows.filter(pl.col("group_id").is_in(page["group_id"].implode())).sort("sample_id")
    members = {key[0]: part for key, part in inside.group_by("group_id")}
    groups = [_group(row, members[row["group_id"]]) for row in page.iter_rows(named=True)]
    return {"num_groups": grouped.height, "num_samples": rows.height, "offset": offset, "groups": groups}


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


def whole_sample(directory: Path, row: dict[str, Any]) -> dict[str, Any]:
    sample = plain_row(row)
    for name in TEXTS:
        value = sample[name]
        sample[name] = {"text": value[:CLIP], "length": len(value), "turns": turns(value) if name == "prompt" else None}
    sample["turns"] = [turn | {"text": turn["text"][:CLIP]} for turn in sample.get("turns") or []]
    num_tokens = len(sample.get("token_ids") or [])
    sample["num_token_ids"] = num_tokens
    for name in PER_TOKEN:
        if sample.get(name):
            sample[name] = sample[name][:CLIP]
    sample.pop("prompt_ids", None)
    sample["pieces"] = pieces(directory, sample.get("token_ids") or [])
    return sample


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    maps = {name: as_dict(row.get(name)) for name in ("sample_metrics", "golden_answers", "tags")}
    return {**row, **maps, **{name: as_text(row.get(name)) for name in TEXTS}}


def as_dict(value: Any) -> dict[str, Any]:
    """A map column comes back as a dict or as a list of {key, value}, by the reader; absent keys stay absent."""
    if not value:
        return {}
    pairs = value.items() if isinstance(value, dict) else ((item["key"], item["value"]) for item in value)
    return {str(key): item for key, item in pairs if item is not None}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def turns(prompt: str) -> list[dict[str, str]] | None:
    """A prompt stored as a JSON list of chat messages, as messages; None for a plain text."""
    if not prompt.startswith("[{") or len(prompt) > 2_000_000:
        return None
    try:
        messages = json.loads(prompt)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(message, dict) and "content" in message for message in messages):
        return None
    return [
        {"role": str(message.get("role", ""))[:40], "content": as_text(message["content"])[:CLIP]}
        for message in messages
    ]


def last_turn(prompt: str) -> str:
    messages = turns(prompt)
    return messages[-1]["content"] if messages else prompt
