"""The step metrics of a run, held in memory, so that a poll costs a slice and not a read of the disk.

A browser's cursor is `run:step:rev`. `rev` is "<history>.<late>": <history> grows when the run's past is rewritten
(a resume) and makes the browser reload; <late> counts values that arrived for steps already sent (an evaluation
that ended after its step was logged), whose rows are sent again.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metrics import read
from metrics.segments import MANIFEST
from metrics.store import ATTEMPTS, FOLDER
from ui.names import FARTHEST, whole_number

MAX_RUNS = 48
EVERYTHING = FARTHEST


def changed_at(run_dir: Path) -> tuple[int, ...]:
    """A stamp that differs once the run has new rows or a new attempt."""
    found: list[int] = []
    for file in (run_dir / FOLDER / "series" / MANIFEST, run_dir / FOLDER / ATTEMPTS):
        if file.exists():
            stat = file.stat()
            found += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
    return tuple(found)


def short(value: float) -> float:
    """Seven significant digits: more than a chart can show, and a third of the bytes."""
    return float(f"{value:.7g}")


@dataclass
class History:
    """One run: rows are steps, columns are keys in the order in which they first appeared; NaN means absent."""

    run_dir: Path
    base: int = -1
    late: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)
    steps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    times: np.ndarray = field(default_factory=lambda: np.empty(0, np.float64))
    table: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float64))
    rows: int = 0
    nonfinite: dict[str, dict[int, str]] = field(default_factory=dict)
    attempts: list[dict[str, int]] = field(default_factory=list)
    stamp: object = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rev(self) -> str:
        return f"{self.base}.{len(self.late)}"

    @property
    def last_step(self) -> int:
        return int(self.steps[self.rows - 1]) if self.rows else 0

    def refresh(self) -> None:
        """Read what is new; nothing is read while the files of the run have not changed."""
        stamp = changed_at(self.run_dir)
        if stamp == self.stamp:
            return
        since = self.last_step if self.rows else None
        found = read.series(self.run_dir, since=since, max_points=EVERYTHING)
        if found["rev"] != self.base:
            if since is not None:
                found = read.series(self.run_dir, max_points=EVERYTHING)
            self._forget(found["rev"])
        self._merge(found)
        self.stamp = stamp

    def _forget(self, rev: int) -> None:
        self.base, self.rows = rev, 0
        self.late, self.nonfinite = [], {}

    def _merge(self, found: dict[str, Any]) -> None:
        self.attempts = found["attempts"]
        keys = [*found["columns"], *found["late"], *found["nonfinite"]]
        self._grow(len(found["steps"]), [key for key in dict.fromkeys(keys) if key not in self.index])
        begin, end = self.rows, self.rows + len(found["steps"])
        self.steps[begin:end], self.times[begin:end] = found["steps"], found["times"]
        self.table[begin:end] = np.nan
        for key, values in found["columns"].items():
            self.table[begin:end, self.index[key]] = [np.nan if value is None else value for value in values]
        self.rows = end
        for key, points in found["nonfinite"].items():
            self.nonfinite.setdefault(key, {}).update({int(step): kind for step, kind in points})
        for key, points in found["late"].items():
            for step, value in points:
                self._set_late(key, int(step), value)

    def _set_late(self, key: str, step: int, value: float | str) -> None:
        """A value of a step that was sent before it; the reader repeats those it has told already."""
        row = int(np.searchsorted(self.steps[: self.rows], step))
        if row >= self.rows or self.steps[row] != step:
            return
        at = self.index[key]
        if isinstance(value, str):
            known = self.nonfinite.setdefault(key, {})
            if known.get(step) == value:
                return
            known[step] = value
        elif self.table[row, at] == value:
            return
        else:
            self.table[row, at] = value
        self.late.append(step)

    def _grow(self, num_rows: int, keys: list[str]) -> None:
        for key in keys:
            self.index[key] = len(self.keys)
            self.keys.append(key)
        rows, columns = self.table.shape
        need = self.rows + num_rows
        if need <= rows and len(self.keys) <= columns:
            return
        bigger = np.full((max(need, rows * 2, 256) if need > rows else rows, len(self.keys) + 16), np.nan)
        bigger[: self.rows, :columns] = self.table[: self.rows]
        self.table = bigger
        self.steps = np.resize(self.steps, len(bigger)) if len(self.steps) else np.zeros(len(bigger), np.int64)
        self.times = np.resize(self.times, len(bigger)) if len(self.times) else np.zeros(len(bigger), np.float64)

    def delta(self, step: int, rev: str, keys: set[str] | None = None) -> dict[str, Any]:
        """Rows after `step`, and rows that changed late since `rev`; columns by their index in `keys`."""
        base, _, seen = rev.partition(".")
        same = base == str(self.base)
        late = sorted(set(self.late[whole_number(seen) or 0 :])) if same else []
        first = int(np.searchsorted(self.steps[: self.rows], step if same else 0, side="right"))
        again = [row for row in np.searchsorted(self.steps[: self.rows], late).tolist() if row < first]
        rows = np.array(again + list(range(first, self.rows)), np.int64)
        wanted = [i for i, key in enumerate(self.keys) if keys is None or key in keys]
        part = self.table[rows][:, wanted] if len(rows) else np.empty((0, len(wanted)))
        there = np.any(~np.isnan(part), axis=0)
        columns = {
            str(i): [None if value != value else short(value) for value in values]
            for i, values, any_there in zip(wanted, part.T.tolist(), there, strict=True)
            if any_there
        }
        shown = {int(self.steps[row]) for row in rows}
        return {
            "rev": self.rev,
            "reset": not same,
            "steps": [int(self.steps[row]) for row in rows],
            "times": [round(float(self.times[row]), 2) for row in rows],
            "columns": columns,
            "nonfinite": self._nonfinite(self.keys if keys is None else keys, shown),
            "num_keys": len(self.keys),
            "last_step": self.last_step,
        }

    def _nonfinite(self, keys: Any, shown: set[int] | None = None) -> dict[str, list[list[Any]]]:
        found: dict[str, list[list[Any]]] = {}
        for key in [key for key in self.nonfinite if key in keys]:
            points = self.nonfinite[key]
            listed = [[step, kind] for step, kind in sorted(points.items()) if shown is None or step in shown]
            if listed:
                found[key] = listed
        return found

    def window(self, keys: list[str], first: int, last: int, max_points: int, grid: tuple[int, int] | None) -> "Window":
        """Columns between two steps. Beyond `max_points` rows each bucket of steps gives three rows: its smallest,
        its largest and its last value. Buckets are aligned powers of two and all columns share the x axis; `grid`
        repeats the (bucket, thinned up to) of an earlier answer so that more keys line up with it."""
        begin = int(np.searchsorted(self.steps[: self.rows], first, side="left"))
        end = int(np.searchsorted(self.steps[: self.rows], last, side="right"))
        steps, times = self.steps[begin:end], self.times[begin:end]
        known = [self.index[key] for key in keys if key in self.index]
        table = self.table[begin:end][:, known]
        bucket, thin_to = grid or _grid(steps, max_points)
        cut = int(np.searchsorted(steps, thin_to, side="right")) if bucket > 1 else 0
        xs, ts, thinned = _thin(steps[:cut], times[:cut], table[:cut], bucket)
        return Window(
            keys=[self.keys[i] for i in known],
            steps=np.concatenate([xs, steps[cut:].astype(np.float64)]),
            times=np.concatenate([ts, times[cut:]]),
            table=np.concatenate([thinned, table[cut:]]),
            bucket=bucket,
            thin_to=thin_to,
            nonfinite=self._nonfinite([self.keys[i] for i in known]),
        )


@dataclass
class Window:
    keys: list[str]
    steps: np.ndarray
    times: np.ndarray
    table: np.ndarray
    bucket: int
    thin_to: int
    nonfinite: dict[str, list[list[Any]]]


def _grid(steps: np.ndarray, max_points: int) -> tuple[int, int]:
    if len(steps) <= max_points or max_points < 6:
        return 1, 0
    bucket = 4
    while 3 * len(steps) / bucket > max_points:
        bucket *= 2
    # Only whole buckets are thinned, so that a bucket never changes after it was drawn.
    return bucket, (int(steps[-1]) // bucket) * bucket - 1


def _thin(
    steps: np.ndarray, times: np.ndarray, table: np.ndarray, bucket: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not len(steps):
        return np.empty(0), np.empty(0), np.empty((0, table.shape[1]))
    starts = np.flatnonzero(np.diff(steps // bucket, prepend=steps[0] // bucket - 1))
    ends = np.append(starts[1:], len(steps))
    middles = np.minimum(starts + (ends - starts) // 2, ends - 1)
    lasts = np.maximum(ends - 1, starts)
    at = np.stack([starts, middles, lasts], 1).ravel()
    low, high = np.fmin.reduceat(table, starts, axis=0), np.fmax.reduceat(table, starts, axis=0)
    last = _last_present(table, lasts, starts)
    low_first = _first_position(table, low, starts, ends) <= _first_position(table, high, starts, ends)
    out = np.empty((len(at), table.shape[1]))
    out[0::3] = np.where(low_first, low, high)
    out[1::3] = np.where(low_first, high, low)
    out[2::3] = last
    x = steps[at].astype(np.float64)
    x[1::3] = (x[0::3] + x[2::3]) / 2
    keep = np.append(np.diff(x) > 0, True)
    keep[2::3] = True
    return x[keep], times[at][keep], out[keep]


def _last_present(table: np.ndarray, lasts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    rows = np.where(np.isnan(table), -1, np.arange(len(table))[:, None])
    at = np.maximum.reduceat(rows, starts, axis=0)
    return np.where(at < 0, np.nan, np.take_along_axis(table, np.maximum(at, 0), axis=0))


def _first_position(table: np.ndarray, value: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Row at which each bucket first holds `value`, so that the smallest and the largest keep their order."""
    same = table == np.repeat(value, ends - starts, axis=0)
    rows = np.where(same, np.arange(len(table))[:, None], len(table))
    return np.minimum.reduceat(rows, starts, axis=0)


class Histories:
    """The runs being looked at; the least recently used ones are forgotten."""

    def __init__(self) -> None:
        self._held: OrderedDict[Path, History] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, run_dir: Path) -> History:
        with self._lock:
            history = self._held.setdefault(run_dir, History(run_dir))
            self._held.move_to_end(run_dir)
            while len(self._held) > MAX_RUNS:
                self._held.popitem(last=False)
        with history.lock:
            history.refresh()
        return history
