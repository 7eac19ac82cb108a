"""The store of one run: what its metrics folder holds, and the writer of it.

    <run>/metrics/lock              pid and host of the writer
    <run>/metrics/attempts.jsonl    one line an attempt: number, resume_step, environments, slots, config, versions
    <run>/metrics/checks.jsonl      self-checks that failed or changed, one line each
    <run>/metrics/series/           one row a step and key: step, time, key, value
    <run>/metrics/samples/          one row a sample (schema.SAMPLES)
    <run>/metrics/evals/            one row an evaluated completion (schema.SAMPLES, outcome `eval`)
    <run>/metrics/spans/            one row an operation (schema.SPANS)

Every table has two columns more: `attempt`, and `row` (its number in the table, in the order of writing). In `series` a
later row of the same attempt, step and key wins; an absent value has no row; a value that is not finite is stored as
it is. The tables are Parquet (metrics/segments.py says how they are written):
`polars.read_parquet("<run>/metrics/series/*.parquet")`. Text columns may hold anything that UTF-8 can; the escapes
`\\udc80` and `\\xff` mark what it cannot.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from metrics.ids import Ids
from metrics.journal import append_line, read_lines, repair
from metrics.lock import RunLock
from metrics.schema import SAMPLES, SPANS
from metrics.segments import Meta, Segment, Table

FOLDER = "metrics"
ATTEMPTS, CHECKS, LOCK = "attempts.jsonl", "checks.jsonl", "lock"
MIB = 2**20
KEPT_STEPS = 256
"""Steps of a merged segment whose bins are told apart: more than samples can run ahead of the trainer."""

SERIES = pa.schema(
    [
        pa.field("step", pa.int64(), False),
        pa.field("time", pa.float64(), False),
        pa.field("key", pa.string(), False),
        pa.field("value", pa.float64(), False),
    ]
)
TABLES = {"series": SERIES, "samples": SAMPLES, "evals": SAMPLES, "spans": SPANS}


def merge_series_meta(parts: list[Meta]) -> Meta:
    """Per key the smallest and largest finite value and the number of rows; per environment its sample metrics; per
    attempt its newest step."""
    keys: dict[str, list[Any]] = {}
    names: dict[str, list[str]] = {}
    last_steps: dict[str, int] = {}
    for part in parts:
        for attempt, step in part.get("last_steps", {}).items():
            last_steps[attempt] = max(step, last_steps.get(attempt, step))
        for key, (low, high, count) in part.get("keys", {}).items():
            old_low, old_high, old_count = keys.get(key, (None, None, 0))
            keys[key] = [least(old_low, low), most(old_high, high), old_count + count]
        for environment, mine in part.get("sample_metrics", {}).items():
            names[environment] = sorted({*names.get(environment, ()), *mine})
    return {"keys": keys, "sample_metrics": names, "last_steps": last_steps}


def least(a: float | None, b: float | None) -> float | None:
    return min((x for x in (a, b) if x is not None), default=None)


def most(a: float | None, b: float | None) -> float | None:
    return max((x for x in (a, b) if x is not None), default=None)


def merge_samples_meta(parts: list[Meta]) -> Meta:
    """Per attempt and step the number of samples in each bin; per attempt the ranges of sample ids.

    Steps that were logged long ago become one: only their sum is asked for, and memory stays bounded.
    """
    bins: dict[str, dict[str, Counter[str]]] = {}
    ids: dict[str, list[list[int]]] = {}
    for part in parts:
        for attempt, steps in part.get("bins", {}).items():
            mine = bins.setdefault(attempt, {})
            for step, counts in steps.items():
                mine.setdefault(step, Counter()).update(counts)
        for attempt, ranges in part.get("ids", {}).items():
            ids.setdefault(attempt, []).extend(ranges)
    plain = {attempt: summed(steps) for attempt, steps in bins.items()}
    return {"bins": plain, "ids": {attempt: Ids(ranges).as_list() for attempt, ranges in ids.items()}}


def summed(bins: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """The bins of the newest KEPT_STEPS steps each, those before them together, as if of the last of these."""
    steps = sorted(bins, key=int)
    old, new = steps[:-KEPT_STEPS], steps[-KEPT_STEPS:]
    together = {old[-1]: sum((bins[step] for step in old), Counter())} if old else {}
    return {step: dict(counts) for step, counts in (together | {step: bins[step] for step in new}).items()}


def no_meta(parts: list[Meta]) -> Meta:
    return {}


class Store:
    """The one writer of a run's metrics. Opening it takes the lock and mends what a killed predecessor left."""

    def __init__(self, run_dir: Path, *, wait_s: float = 0.0) -> None:
        self.root = Path(run_dir) / FOLDER
        self.root.mkdir(parents=True, exist_ok=True)
        self.lock = RunLock(self.root / LOCK, wait_s=wait_s)
        for name in (ATTEMPTS, CHECKS):
            repair(self.root / name)
        rows = {"sort_merged_by": ["row"], "max_merged_bytes": 16 * MIB, "row_group_size": 256}
        self.series = Table(
            self.root / "series",
            sort_merged_by=["key", "row"],
            merge_meta=merge_series_meta,
            max_merged_bytes=256 * MIB,
            row_group_size=65_536,
        )
        self.samples = Table(self.root / "samples", merge_meta=merge_samples_meta, **rows)  # type: ignore[arg-type]
        self.evals = Table(self.root / "evals", merge_meta=no_meta, **rows)  # type: ignore[arg-type]
        self.spans = Table(
            self.root / "spans",
            sort_merged_by=["step", "row"],
            merge_meta=no_meta,
            max_merged_bytes=16 * MIB,
            row_group_size=4_096,
        )

    def begin(self, attempt: int, resume_step: int, info: Mapping[str, Any]) -> None:
        """Enter an attempt, or find it when its writer was restarted. Attempts only go forward."""
        known = {item["attempt"]: item for item in read_lines(self.root / ATTEMPTS).items}
        if attempt in known:
            if known[attempt]["resume_step"] != resume_step:
                raise ValueError(
                    f"attempt {attempt} resumes from step {known[attempt]['resume_step']}, got "
                    f"{resume_step}; a new resume needs attempt {attempt + 1}"
                )
            return
        if attempt < max(known, default=0):
            raise ValueError(f"attempt {attempt} is over: attempt {max(known)} has begun; use {max(known) + 1}")
        header = {
            "attempt": attempt,
            "resume_step": resume_step,
            "time": time.time(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        append_line(self.root / ATTEMPTS, header | dict(info))

    def add_values(
        self,
        values: Mapping[str, tuple[int, float]] | list[tuple[int, str, float]],
        *,
        attempt: int,
        source: str,
        seq: int,
        time_s: float,
        sample_metrics: dict[str, list[str]] | None = None,
    ) -> Segment:
        """One row for each (step, key, value)."""
        rows = (
            list(values) if isinstance(values, list) else [(step, key, value) for key, (step, value) in values.items()]
        )
        table = pa.table(
            [
                [step for step, _, _ in rows],
                [time_s] * len(rows),
                [key for _, key, _ in rows],
                [value for _, _, value in rows],
            ],
            schema=SERIES,
        )
        meta = {
            "keys": key_ranges(rows),
            "sample_metrics": sample_metrics or {},
            "last_steps": {str(attempt): max(step for step, _, _ in rows)} if rows else {},
        }
        return self.series.append(table, attempt=attempt, source=source, seq=seq, meta=meta)

    def add_samples(self, rows: pa.Table, *, attempt: int, source: str, seq: int) -> Segment:
        return self.samples.append(rows, attempt=attempt, source=source, seq=seq, meta=samples_meta(rows, attempt))

    def add_checks(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            append_line(self.root / CHECKS, record)

    def close(self) -> None:
        for table in TABLES:
            sync_folder(self.root / table)
        self.lock.release()


def key_ranges(rows: list[tuple[int, str, float]]) -> dict[str, list[Any]]:
    ranges: dict[str, list[Any]] = {}
    for _, key, value in rows:
        finite = value if np.isfinite(value) else None
        low, high, count = ranges.get(key, (None, None, 0))
        ranges[key] = [least(low, finite), most(high, finite), count + 1]
    return ranges


def samples_meta(rows: pa.Table, attempt: int) -> Meta:
    frame = pl.from_arrow(rows.select(["step", "outcome", "sample_id"]))
    assert isinstance(frame, pl.DataFrame)
    bins: dict[str, dict[str, int]] = {}
    for step, outcome, count in frame.group_by("step", "outcome").len().sort("step", "outcome").rows():
        bins.setdefault(str(step), {})[outcome] = count
    ids = Ids()
    ids.add(frame["sample_id"].to_numpy())
    return {"bins": {str(attempt): bins}, "ids": {str(attempt): ids.as_list()}}


def sync_folder(folder: Path) -> None:
    """Ask the operating system to write the folder's newest files to the disk."""
    newest = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime_ns)[-2 * 16 :]
    for path in newest:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
