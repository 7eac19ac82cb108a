"""Route for the timeline: what every lane did between two steps, from the run's spans and sample times."""

import heapq
from pathlib import Path
from typing import Any

import polars as pl
from fastapi import APIRouter, HTTPException, Query, Response

from metrics import read
from ui.names import FARTHEST, run_dir
from ui.replies import reply

MOST_STEPS = 60
SAMPLE_TIMES = [
    "sample_id", "group_id", "env", "outcome", "generate_start_s", "generate_end_s", "reward_start_s", "reward_end_s",
    "completion_tokens", "turn_times_s",
]  # fmt: skip
# The order of kinds fixes their colours in the browser.
KINDS = (
    "generate", "reward", "waiting_for_data", "prepare_tensors", "data_to_device", "forward", "loss_computation",
    "compute_kl", "compute_entropy", "backward", "optimizer", "weight_sync_trainer", "weight_sync_inference",
    "checkpoint", "eval", "waiting_for_metrics",
)  # fmt: skip


def routes(root: Path) -> APIRouter:
    api = APIRouter()

    @api.get("/timeline")
    def timeline(
        run: str,
        first: int = Query(..., alias="from", ge=0, le=FARTHEST),
        last: int = Query(..., alias="to", ge=0, le=FARTHEST),
    ) -> Response:
        """Spans of the trainer, of weight pushes, checkpoints and evals, and of generating and scoring samples."""
        if last < first or last - first >= MOST_STEPS:
            raise HTTPException(400, f"steps {first} to {last}: a range of 1 to {MOST_STEPS} steps is wanted")
        directory = run_dir(root, run)
        spans = read.spans(directory, first, last)
        steps = spans.filter(pl.col("kind") == "step")
        samples = [row for step in range(first, last + 1) for row in _sample_times(directory, step)]
        return reply({"from": first, "to": last, "steps": _windows(steps, spans), **bars_of(spans, samples)})

    return api


def _sample_times(directory: Path, step: int) -> list[dict[str, Any]]:
    frame, _ = read.samples(directory, step=step, columns=SAMPLE_TIMES, limit=None)
    frame = frame.drop_nulls(["generate_start_s", "generate_end_s"])
    return [{"step": step, **row} for row in frame.iter_rows(named=True)]


def _windows(steps: pl.DataFrame, spans: pl.DataFrame) -> list[dict[str, float]]:
    """Start and end of each step: its own span where there is one, else the hull of its spans."""
    source = steps if steps.height else spans
    hull = source.group_by("step").agg(pl.col("start_s").min(), pl.col("end_s").max()).sort("step")
    return hull.to_dicts()


def bars_of(spans: pl.DataFrame, samples: list[dict[str, Any]]) -> dict[str, Any]:
    bars: list[tuple[str, str, float, float, int, str]] = []
    for slot, row in packed(samples, "generate_start_s", "generate_end_s"):
        text = f"sample {row['sample_id']} · {row['env']} · {row['completion_tokens']} tokens · {row['outcome']}"
        bars += [(f"slot {slot}", "generate", start, end, row["step"], text) for start, end in generated(row)]
    scored = [row for row in samples if row["reward_start_s"] is not None and row["reward_end_s"] is not None]
    for slot, row in packed(scored, "reward_start_s", "reward_end_s"):
        text = f"reward of sample {row['sample_id']} · {row['env']}"
        bars.append((f"reward {slot}", "reward", row["reward_start_s"], row["reward_end_s"], row["step"], text))
    for row in spans.filter(pl.col("kind") != "step").sort("start_s").iter_rows(named=True):
        micro = "" if row["microbatch"] is None else f"micro-batch {row['microbatch']}"
        text = " · ".join(part for part in (micro, row["detail"] or "") if part)
        bars.append((row["lane"], row["kind"], row["start_s"], row["end_s"], row["step"], text))
    lanes = list(dict.fromkeys(bar[0] for bar in bars))
    kinds = [*KINDS, *sorted({bar[1] for bar in bars} - set(KINDS))]
    return {
        "lanes": lanes,
        "kinds": kinds,
        "lane": [lanes.index(bar[0]) for bar in bars],
        "kind": [kinds.index(bar[1]) for bar in bars],
        "start": [round(bar[2], 5) for bar in bars],
        "end": [round(bar[3], 5) for bar in bars],
        "step": [bar[4] for bar in bars],
        "text": [bar[5] for bar in bars],
    }


def generated(row: dict[str, Any]) -> list[tuple[float, float]]:
    """Start and end of what was generated: in a conversation of each turn, for the environment answers in between."""
    times = row["turn_times_s"]
    if times is None:
        return [(row["generate_start_s"], row["generate_end_s"])]
    return list(zip(times[::2], times[1::2], strict=True))


def packed(rows: list[dict[str, Any]], start: str, end: str) -> list[tuple[int, dict[str, Any]]]:
    """Each row with the lowest slot that is free at its start, so that rows of one slot never overlap."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    placed, used = [], 0
    for row in sorted(rows, key=lambda row: row[start]):
        while busy and busy[0][0] <= row[start]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, used)
            used += 1
        slot = heapq.heappop(free)
        heapq.heappush(busy, (row[end], slot))
        placed.append((slot, row))
    return sorted(placed, key=lambda pair: pair[0])
