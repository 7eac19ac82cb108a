"""Every logged number that rows decide, made again from the stored rows and held against what was logged.

What the trainer measures inside a step (its losses, the entropy, …) has no rows to be made from again; it is counted.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from metrics.catalog import attempts, sample_metric_keys
from metrics.evals import eval_metrics
from metrics.ledger import balance
from metrics.population import arranged
from metrics.reader import read
from metrics.registry import find
from metrics.schema import NARROW
from metrics.step import step_metrics
from metrics.store import FOLDER, merge_series_meta
from metrics.timeline import slot_shares, spans_of, steps_until_known, window
from metrics.values import asked_pass_k, maxima

RELATIVE, ABSOLUTE = 1e-9, 1e-12
SHARES = ("timing_generation_pct", "timing_reward_pct", "timing_idle_pct")


@dataclass(frozen=True)
class Difference:
    """One number that does not follow from the rows. None: absent on that side."""

    attempt: int
    step: int
    key: str
    logged: float | None
    recomputed: float | None

    def __str__(self) -> str:
        return (
            f"attempt {self.attempt} step {self.step} {self.key}: logged {self.logged}, from the rows {self.recomputed}"
        )


@dataclass(frozen=True)
class Report:
    differences: list[Difference]
    num_equal: int
    num_given: int
    """Values that the trainer or a backend gave: there are no rows to make them from."""
    damaged: list[str]


def recompute(run_dir: Path) -> Report:
    """All attempts, abandoned tails included."""
    folder = Path(run_dir) / FOLDER
    stored = read(folder / "series", lambda s: True)
    damaged = list(stored.damaged)
    differences: list[Difference] = []
    equal = given = 0
    logged_rows = pl.concat(stored.frames).sort("row") if stored.frames else None
    own_names = merge_series_meta([segment.meta for segment in stored.known.segments])["sample_metrics"]
    sample_metrics = sample_metric_keys(own_names).keys()
    for about in attempts(run_dir):
        if logged_rows is None:
            break
        number = about["attempt"]
        logged = values_by_step(logged_rows.filter(pl.col("attempt") == number))
        derived, more = derived_by_step(folder, about, logged)
        damaged += more
        for step, values in logged.items():
            mine = derived.get(step, {})
            own = {key: value for key, value in values.items() if key in mine or must_follow(key, sample_metrics)}
            given += len(values) - len(own)
            wrong = compared(number, step, own, mine)
            differences += wrong
            equal += len(own.keys() | mine.keys()) - len(wrong)
    return Report(differences, equal, given, sorted(set(damaged)))


def must_follow(key: str, sample_metrics: Collection[str]) -> bool:
    """The rows decide this key: all but what the trainer, its backend or an evaluator measured."""
    metric = find(key)
    return key in sample_metrics if metric is None else metric.source not in ("trainer", "eval")


def values_by_step(rows: pl.DataFrame) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, key, value in rows.select("step", "key", "value").rows():
        found.setdefault(step, {})[key] = value
    return dict(sorted(found.items()))


def derived_by_step(
    folder: Path, about: Mapping[str, Any], logged: Mapping[int, Mapping[str, float]]
) -> tuple[dict[int, dict[str, float]], list[str]]:
    """Per step what follows from the rows of the attempt, in the way that metrics/core.py makes it."""
    number, lag = about["attempt"], steps_until_known(about["config"])
    rows, bad_rows = attempt_rows(folder / "samples", number, [*NARROW, "attempt"])
    timeline, bad_spans = attempt_rows(folder / "spans", number)
    evals, bad_evals = attempt_rows(folder / "evals", number, [*NARROW, "attempt"])
    derived: dict[int, dict[str, float]] = {}
    windows: dict[int, tuple[float, float]] = {}
    ended: Counter[str] = Counter()
    previous_step: int | None = None
    for step in [step for step, values in logged.items() if "ledger/started" in values]:
        samples = rows.filter(pl.col("step").is_between((previous_step or about["resume_step"]) + 1, step))
        spans = timeline.filter(pl.col("step") == step)
        before = windows.get(previous_step, (0.0, None))[1] if previous_step is not None else None
        ended.update(dict(samples["outcome"].value_counts().rows()) if len(samples) else {})
        derived[step] = whole_row(
            samples.filter(pl.col("step") == step),
            spans,
            None if lag else about["num_slots"],
            before,
            logged[step],
            ended,
        )
        bounds = window(spans_of(spans), before)
        if bounds is not None:
            windows[step] = bounds
        previous_step = step
    if lag and derived:
        add_shares(derived, windows, rows, about["num_slots"], lag, logged)
    solved, pass_k = maxima(about["environments"]), asked_pass_k(about["environments"])
    for (step,), part in evals.group_by("step"):
        derived.setdefault(int(step), {}).update(eval_metrics(part, solved, pass_k))
    return derived, bad_rows + bad_spans + bad_evals


def whole_row(
    samples: pl.DataFrame,
    spans: pl.DataFrame,
    num_slots: int | None,
    previous_end_s: float | None,
    logged: Mapping[str, float],
    ended: Counter[str],
) -> dict[str, float]:
    values = step_metrics(samples, spans, num_slots=num_slots, previous_end_s=previous_end_s)
    seconds = values.get("timing_step_total", 0.0)
    if "tokens/trained" in logged and seconds > 0:
        values["throughput/trained_tokens_per_s"] = logged["tokens/trained"] / seconds
    return values | balance(int(logged["ledger/started"]), ended)


def add_shares(
    derived: dict[int, dict[str, float]],
    windows: Mapping[int, tuple[float, float]],
    rows: pl.DataFrame,
    num_slots: int,
    lag: int,
    logged: Mapping[int, Mapping[str, float]],
) -> None:
    """The slots' shares are logged `lag` steps later, or when the attempt is closed; before that they are absent."""
    last = max(derived)
    for step, bounds in windows.items():
        final = step + lag <= last
        if final or any(key in logged[step] for key in SHARES):
            until = step + lag if final else 2**62
            derived[step] |= slot_shares(
                arranged(rows.filter(pl.col("step").is_between(step, until))), bounds, num_slots
            )


def attempt_rows(folder: Path, attempt: int, columns: list[str] | None = None) -> tuple[pl.DataFrame, list[str]]:
    found = read(folder, lambda s: s.attempts[0] <= attempt <= s.attempts[1], columns, keep=False)
    if not found.frames:
        return pl.DataFrame(schema={"step": pl.Int64, "outcome": pl.String}), found.damaged
    return pl.concat(found.frames, how="diagonal").filter(pl.col("attempt") == attempt), found.damaged


def compared(attempt: int, step: int, logged: Mapping[str, float], derived: Mapping[str, float]) -> list[Difference]:
    return [
        Difference(attempt, step, key, logged.get(key), derived.get(key))
        for key in sorted(logged.keys() | derived.keys())
        if not same(logged.get(key), derived.get(key))
    ]


def same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
