"""How fast the metrics are: aggregation, appending, opening, deltas. Run: python -m bench.metrics [RESULTS.json]

Times are CPU time of the process, all its threads together, the best of several runs: on an idle machine the time on
the clock is at most that, and a busy machine changes it little. Ratios are of two times in one process.
The comparison is the same definitions in straightforward pandas: groupby, and a Gini function of a group.
"""

import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa

import metrics
from metrics import read, reader
from metrics.core import MetricsCore
from metrics.schema import SAMPLES, conform, spans_table
from metrics.store import Store

NUM_METRICS = 20


def main() -> int:
    results = [*aggregation(), *appending(), *opening(), *following(), *remembering()]
    width = max(len(result["what"]) for result in results)
    for result in results:
        limit = result["limit"]
        mark = "" if limit is None else "ok" if result["ok"] else "OVER"
        print(f"{result['what']:<{width}}  {result['value']:>10.2f} {result['unit']:<4} {limit or '':<10} {mark}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=1))
    return 0 if all(result["ok"] for result in results) else 1


def result(what: str, value: float, unit: str, *, below: float | None = None, above: float | None = None) -> dict:
    limit = f"< {below:g}" if below is not None else f">= {above:g}" if above is not None else None
    ok = (below is None or value < below) and (above is None or value >= above)
    return {"what": what, "value": value, "unit": unit, "limit": limit, "ok": ok}


def best_ms(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def samples(count: int, group_size: int, num_metrics: int = NUM_METRICS, step: int = 1) -> pa.Table:
    rng = np.random.default_rng(count + step)
    values = rng.random((count, num_metrics))
    names = pa.array([f"metric_{i}" for i in range(num_metrics)])
    keys = names.take(pa.array(np.tile(np.arange(num_metrics), count)))
    own = pa.MapArray.from_arrays(
        np.arange(0, count * num_metrics + 1, num_metrics, dtype=np.int32), keys, pa.array(values.ravel())
    )
    lengths = rng.integers(1, 500, count)
    ids = np.arange(count) + step * count
    return conform(
        pa.table(
            {
                "step": np.full(count, step),
                "env": ["sums"] * count,
                "group_id": ids // group_size,
                "sample_id": ids,
                "outcome": ["trained"] * count,
                "reward": rng.random(count),
                "advantage": rng.standard_normal(count),
                "prompt_tokens": np.full(count, 20),
                "completion_tokens": lengths,
                "total_tokens": lengths + 20,
                "num_turns": np.ones(count, int),
                "truncated_turns": (lengths > 490).astype(int),
                "off_policy_steps": np.zeros(count, int),
                "sample_metrics": own,
            }
        ),
        SAMPLES,
    )


def aggregation() -> list[dict]:
    small, large = samples(512, 8), samples(100_000, 8)
    frame, big = pl.DataFrame(small), pl.DataFrame(large)
    none = pl.DataFrame()
    plain = as_pandas(small)
    assert_equal(metrics.step_metrics(frame, none), in_pandas(plain))
    ours = best_ms(lambda: metrics.step_metrics(frame, none), 40)
    theirs = best_ms(lambda: in_pandas(plain), 5)
    return [
        result(f"a step of 512 samples x {NUM_METRICS} metrics in 64 groups", ours, "ms", below=10),
        result("the same in straightforward pandas", theirs, "ms"),
        result("ratio", theirs / ours, "x", above=10),
        result(
            f"a step of 100,000 samples x {NUM_METRICS} metrics",
            best_ms(lambda: metrics.step_metrics(big, none), 6),
            "ms",
            below=250,
        ),
    ]


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """One row a sample, one column a number: what someone would start from."""
    frame = table.drop_columns(["sample_metrics"]).to_pandas()
    own = pd.DataFrame([dict(pairs) for pairs in table["sample_metrics"].to_pylist()])
    return pd.concat([frame, own], axis=1)


def gini(values: pd.Series) -> float:
    x = values.to_numpy()
    total = np.abs(x).sum()
    return float(np.abs(x[:, None] - x[None, :]).sum() / (2 * len(x) * total)) if total else 0.0


def in_pandas(frame: pd.DataFrame) -> dict[str, float]:
    """The same definitions, column by column, group by group."""
    found: dict[str, float] = {}
    trained = frame[frame.outcome == "trained"]
    own = [name for name in frame.columns if name.startswith("metric_")]

    def spread(prefix: str, rows: pd.DataFrame, column: str) -> None:
        for name in ("mean", "std", "min", "max", "count"):
            found[f"{prefix}_{name}"] = float(getattr(rows[column].dropna(), name)())

    def rewards(prefix: str, rows: pd.DataFrame) -> None:
        spread(f"{prefix}reward", rows, "reward")
        found[f"{prefix}reward_gini_mean"] = rows.groupby("group_id").reward.apply(gini).mean()
        found[f"{prefix}reward_group_std_mean"] = rows.groupby("group_id").reward.std().mean()

    def lengths(prefix: str, rows: pd.DataFrame) -> None:
        for kind in ("prompt", "completion", "total"):
            spread(f"{prefix}tokens_{kind}", rows, f"{kind}_tokens")
        groups = rows.groupby("group_id").completion_tokens
        found[f"{prefix}group_length_gini_mean"] = groups.apply(gini).mean()
        found[f"{prefix}group_length_max_median_ratio_mean"] = (groups.max() / groups.median()).mean()
        found[f"{prefix}stop_reason_length_pct"] = 100 * (rows.truncated_turns > 0).mean()

    for prefix, rows in (("", trained), ("generated/", frame[frame.reward.notna()])):
        rewards(prefix, rows)
        lengths(prefix, rows)
    spread("advantage", trained, "advantage")
    spread("off_policy_steps", trained, "off_policy_steps")
    for name, rows in trained.groupby("env"):
        rewards(f"reward/{name}/", rows)
    for prefix, rows in (("", trained), *((f"{name}/", rows) for name, rows in trained.groupby("env"))):
        for column in own:
            spread(prefix + column, rows, column)
            found[f"{prefix}{column}_gini_mean"] = rows.groupby("group_id")[column].apply(gini).mean()
    return found


def assert_equal(ours: dict[str, float], theirs: dict[str, float]) -> None:
    wrong = {
        key: (ours.get(key), value) for key, value in theirs.items() if not np.isclose(ours[key], value, rtol=1e-9)
    }
    assert not wrong, wrong
    assert len(theirs) > 300


def appending() -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "run")
        store.begin(1, 0, {"config": {}, "environments": [], "num_slots": 1})
        values = [(f"key_{i}", float(i)) for i in range(60)]
        times = []
        for step in range(1, 401):
            start = time.process_time()
            store.add_values([(step, key, value) for key, value in values], attempt=1, source="t", seq=step, time_s=0.0)
            times.append(1000 * (time.process_time() - start))
        store.close()
        one = MetricsCore(
            Path(folder) / "core", attempt=1, resume_step=0, config={"algorithm": "grpo"}, environments=[], num_slots=8
        )
        whole = []
        for step in range(1, 31):
            table = samples(512, 8, step=step)
            start = time.process_time()
            one.log_samples("b", step, table)
            one.log_step("t", step, step, {"tokens/trained": 1.0}, spans_table([]), 512 * step)
            whole.append(1000 * (time.process_time() - start))
        one.close("finished")
    return [
        result("appending a step of 60 keys, median", statistics.median(times), "ms", below=5),
        result("appending a step of 60 keys, mean with merges", statistics.fmean(times), "ms", below=5),
        result(
            "a whole step through the core: 512 samples stored, aggregated, checked, logged",
            statistics.median(whole),
            "ms",
        ),
    ]


def opening(steps: int = 5_000, num_keys: int = 60) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        store = begun(run)
        log_steps(store, range(1, steps + 1), num_keys)
        bare = best_ms(lambda: opened(run), 7)
        rollouts = samples(2_000, 8)
        for seq in range(60):
            store.add_samples(rollouts, attempt=1, source="b", seq=seq)
        store.close()
        full = best_ms(lambda: opened(run), 7)
        everything = best_ms(lambda: read.series(run), 5)
    return [
        result(
            f"opening {steps} steps x {num_keys} keys (catalog, 2,000 points a key), nothing in memory",
            full,
            "ms",
            below=100,
        ),
        result("the same without its 120,000 rollouts", bare, "ms"),
        result("ratio: rollouts do not matter", full / bare, "x", below=1.5),
        result("all series again, segments in memory", everything, "ms"),
    ]


def opened(run: Path) -> None:
    """What the first page needs, with every cache of the process emptied first."""
    reader.forget()
    read.catalog(run)
    found = read.series(run)
    assert len(found["columns"]) == 60


def begun(run: Path) -> Store:
    store = Store(run)
    store.begin(1, 0, {"config": {}, "environments": [], "num_slots": 1})
    return store


def log_steps(store: Store, steps: range, num_keys: int) -> None:
    for step in steps:
        values = np.random.default_rng(step).random(num_keys)
        points = [(step, f"key_{i}", float(value)) for i, value in enumerate(values)]
        store.add_values(points, attempt=1, source="t", seq=step, time_s=float(step))


def following(num_keys: int = 100) -> list[dict]:
    """A reader that is told of each step as it comes, in a run of few steps and in a run of many."""
    times: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "run.json").write_text("{}")
        store, last = begun(run), 0
        for steps in (500, 5_000):
            log_steps(store, range(last + 1, steps + 1), num_keys)
            times[steps] = [refreshed_ms(store, run, step, num_keys) for step in range(steps + 1, steps + 101)]
            last = steps + 100
        store.close()
        read.catalog(run)
        again = best_ms(lambda: (read.catalog(run), read.runs(run.parent)), 20)
    few, many = (statistics.median(times[steps]) for steps in (500, 5_000))
    return [
        result(f"a refresh of {num_keys} keys x 1 step on 5,000 steps, median", many, "ms", below=2),
        result("the same, mean with the steps whose segments were just merged", statistics.fmean(times[5_000]), "ms"),
        result("ratio to the same on 500 steps", many / few, "x", below=1.5),
        result("catalog and list of runs when nothing changed", again, "ms", below=1),
    ]


def refreshed_ms(store: Store, run: Path, step: int, num_keys: int) -> float:
    log_steps(store, range(step, step + 1), num_keys)
    start = time.process_time()
    found = read.series(run, since=step - 1)
    took = 1000 * (time.process_time() - start)
    assert (found["steps"], len(found["columns"])) == ([step], num_keys)
    return took


def remembering(steps: int = 5_000) -> list[dict]:
    """What the actor's process holds after a tenth of a run and at its end."""
    held: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        one = MetricsCore(Path(folder), attempt=1, resume_step=0, config={}, environments=[], num_slots=8)
        for step in range(1, steps + 1):
            one.log_samples("b", step, samples(16, 8, 4, step=step))
            one.log_step("t", step, step, {"tokens/trained": 1.0}, spans_table([]), 16 * step)
            if step in (steps // 10, steps):
                gc.collect()
                held.append(psutil.Process().memory_info().rss / 2**20)
        one.close("finished")
    return [
        result(f"memory of the process after {steps // 10} steps of 16 samples", held[0], "MiB"),
        result(f"growth until step {steps}", held[1] - held[0], "MiB", below=50),
    ]


if __name__ == "__main__":
    sys.exit(main())
