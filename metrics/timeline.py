"""Where the time of a step went (contract section 6). Seconds of one monotonic clock; ranks are reduced by max for
totals."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from metrics.registry import measured
from metrics.schema import DUMMY, SpanKind

OPERATIONS = (
    SpanKind.FORWARD,
    SpanKind.BACKWARD,
    SpanKind.LOSS_COMPUTATION,
    SpanKind.COMPUTE_KL,
    SpanKind.COMPUTE_ENTROPY,
    SpanKind.DATA_TO_DEVICE,
    SpanKind.PREPARE_TENSORS,
    SpanKind.OPTIMIZER,
)
CHARGED = (SpanKind.WEIGHT_SYNC_TRAINER, SpanKind.CHECKPOINT, SpanKind.EVAL, SpanKind.WAITING_FOR_METRICS)
SPAN_COLUMNS: dict[str, Any] = {
    "lane": pl.String,
    "kind": pl.String,
    "start_s": pl.Float64,
    "end_s": pl.Float64,
    "microbatch": pl.Int64,
    "detail": pl.String,
}


def timing(
    key: str,
    definition: str,
    *,
    unit: str = "s",
    population: str = "spans of the step",
    reduction: str = "sum in each lane, max over lanes",
    absent_when: str = "no such span",
    **more: Any,
) -> None:
    measured(
        f"timing_{key}",
        definition,
        section="Timeline",
        unit=unit,
        population=population,
        reduction=reduction,
        absent_when=absent_when,
        source="timeline",
        **more,
    )


timing(
    "step_total",
    "End of this step − end of the previous one (first step: − start of the training loop).",
    reduction="max over ranks",
    absent_when="no step span",
)
timing(
    "waiting_for_data", "Time of the step spent waiting for a batch.", absent_when="no step span", lower_is_better=True
)
timing(
    "step_active", "timing_step_total − timing_waiting_for_data.", reduction="difference", absent_when="no step span"
)
for operation in OPERATIONS:
    timing(f"{operation}_total", f"Time in '{operation}' over the step.")
    timing(
        f"{operation}_microbatch_mean",
        f"Time in '{operation}' of one micro-batch; dummy micro-batches are left out.",
        population="micro-batches of the step, every rank",
        reduction="mean over micro-batches",
        absent_when="no such span with a micro-batch",
    )
timing("weight_sync_trainer_total", "Gathering and publishing the weights.")
timing(
    "weight_sync_inference_total",
    "From the first server's start of loading the weights to the last one's end.",
    reduction="last end − first start",
)
timing("checkpoint_total", "Writing the checkpoint of the step.")
timing(
    "eval_total",
    "From start to end of the evaluations that the step waited for: those that began after the step before, and its "
    "own where a checkpoint or the run's end comes with it. They run beside training, at times longer than the step.",
)
timing(
    "waiting_for_metrics_total",
    "Time of the step in which the training loop waited for the metrics actor to store a message.",
    lower_is_better=True,
)
LONGEST_OVERLAP = 16
"""Steps after which the slots' shares are made in any case: where any age is allowed, they would never be."""
SLOTS = "inference slots × the step's window (from the end of the previous step to the end of this one)"
timing(
    "generation_pct",
    "Share of the inference slots' time in the step's window in which they generated, for whichever "
    "step the sample is used. While an environment answers in a conversation, nothing is generated. Evals are not "
    "counted, nor a sample that ends more than 16 steps later.",
    unit="%",
    population=SLOTS,
    reduction="100 × Σ overlap / (slots × window)",
    absent_when="no step span or no generation times",
)
timing(
    "reward_pct",
    "Share of the inference slots' time in the step's window in which the samples were scored.",
    unit="%",
    population=SLOTS,
    reduction="100 × Σ overlap / (slots × window)",
    absent_when="no step span or no generation times",
)
timing(
    "idle_pct",
    "What is left of the inference slots' time: 100 − generation − reward, at least 0.",
    unit="%",
    population=SLOTS,
    reduction="difference",
    absent_when="no step span or no generation times",
    lower_is_better=True,
)


@dataclass(frozen=True)
class Span:
    lane: str
    kind: str
    start_s: float
    end_s: float
    microbatch: int | None
    detail: str | None

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def spans_of(frame: pl.DataFrame) -> list[Span]:
    columns = [
        pl.col(name).cast(kind) if name in frame.columns else pl.lit(None, dtype=kind).alias(name)
        for name, kind in SPAN_COLUMNS.items()
    ]
    return [Span(*row) for row in frame.select(columns).rows()]


def window(spans: Iterable[Span], previous_end_s: float | None = None) -> tuple[float, float] | None:
    """Start and end of the step. The end of the previous step, when known, is the truth about the start.

    Without a `step` span, the trainer's operations bound the step, if the previous end is known.
    """
    spans = list(spans)
    steps = [span for span in spans if span.kind == SpanKind.STEP]
    if steps:
        start = min(span.start_s for span in steps) if previous_end_s is None else previous_end_s
        return start, max(span.end_s for span in steps)
    ends = [span.end_s for span in spans if span.kind in OPERATIONS]
    return (previous_end_s, max(ends)) if ends and previous_end_s is not None else None


def timings(spans: list[Span], previous_end_s: float | None = None) -> dict[str, float]:
    """Every timing_* of a step except the shares of the inference slots."""
    by_kind: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_kind[span.kind].append(span)
    found: dict[str, float] = {}
    for kind in (*OPERATIONS, *CHARGED):
        if by_kind[kind]:
            found[f"timing_{kind}_total"] = longest_lane(by_kind[kind])
    for kind in OPERATIONS:
        mean = microbatch_mean(by_kind[kind])
        if mean is not None:
            found[f"timing_{kind}_microbatch_mean"] = mean
    if loading := by_kind[SpanKind.WEIGHT_SYNC_INFERENCE]:
        first, last = min(span.start_s for span in loading), max(span.end_s for span in loading)
        found["timing_weight_sync_inference_total"] = last - first
    return found | whole_step(by_kind, window(spans, previous_end_s))


def whole_step(by_kind: dict[str, list[Span]], bounds: tuple[float, float] | None) -> dict[str, float]:
    if bounds is None:
        return {}
    total = bounds[1] - bounds[0]
    waiting = longest_lane(by_kind[SpanKind.WAITING_FOR_DATA])
    return {"timing_step_total": total, "timing_waiting_for_data": waiting, "timing_step_active": total - waiting}


def longest_lane(spans: list[Span]) -> float:
    sums: dict[str, float] = defaultdict(float)
    for span in sorted(spans, key=lambda span: (span.lane, span.start_s)):
        sums[span.lane] += span.seconds
    return max(sums.values(), default=0.0)


def microbatch_mean(spans: list[Span]) -> float | None:
    real = [span for span in spans if span.microbatch is not None and span.detail != DUMMY]
    if not real:
        return None
    seconds = sum(span.seconds for span in sorted(real, key=lambda span: (span.lane, span.start_s)))
    return seconds / len({(span.lane, span.microbatch) for span in real})


def steps_until_known(config: Mapping[str, Any]) -> int:
    """After how many steps every sample that overlaps a step's window has ended, so that the slots' shares are known.

    A sample ends at most max_off_policy_steps after its oldest token, one that is discarded a step later. 0 where each
    step waits for its own samples.
    """
    ahead = int(config.get("max_async_rollout") or 0)
    if not ahead:
        return 0
    oldest = int(config.get("max_off_policy_steps") or ahead)
    return min(oldest + (config.get("stragglers") == "discard"), LONGEST_OVERLAP)


def slot_shares(samples: pl.DataFrame, bounds: tuple[float, float] | None, num_slots: int) -> dict[str, float]:
    """Generation, reward and idle shares of the slots' time inside the window. A sample counts for its part inside."""
    if bounds is None or num_slots < 1 or bounds[1] <= bounds[0] or not len(samples):
        return {}
    times = generation_times(samples)
    if not len(times):
        return {}
    generation, scoring = overlap(times, bounds), overlap(whole_times(samples, "reward"), bounds)
    whole = num_slots * (bounds[1] - bounds[0])
    shares = {"timing_generation_pct": 100.0 * generation / whole, "timing_reward_pct": 100.0 * scoring / whole}
    return shares | {"timing_idle_pct": max(0.0, 100.0 - sum(shares.values()))}


def generation_times(samples: pl.DataFrame) -> NDArray[np.float64]:
    """(start, end) of everything that was generated: the turns of the policy in a conversation, else the sample."""
    talks = samples.filter(pl.col("turn_times_s").is_not_null())
    turns = talks["turn_times_s"].explode().drop_nulls().to_numpy().reshape(-1, 2)
    return np.concatenate([whole_times(samples.filter(pl.col("turn_times_s").is_null()), "generate"), turns])


def whole_times(samples: pl.DataFrame, what: str) -> NDArray[np.float64]:
    """(start, end) of each sample that has both."""
    return samples.select(f"{what}_start_s", f"{what}_end_s").drop_nulls().to_numpy().astype(np.float64)


def overlap(times: NDArray[np.float64], bounds: tuple[float, float]) -> float:
    """Seconds inside the window, summed in the order of their start, whatever the order of the rows."""
    starts, ends = times[np.lexsort((times[:, 1], times[:, 0]))].T
    return float(np.clip(np.minimum(ends, bounds[1]) - np.maximum(starts, bounds[0]), 0.0, None).sum())
