"""Curves: a run's step values as columns, whole or what is new since a step.

A delta costs what is new. Rows are numbered in the order of writing, and a reader who knows the curve up to a step has
every row up to the end of the message that brought it; so only segments with later rows are opened.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.compute as pc

from metrics.catalog import attempts, visible_until
from metrics.numbers import Floats, Ints
from metrics.reader import Cache, Found, manifest, read
from metrics.segments import Manifest, Segment
from metrics.store import FOLDER, SERIES
from metrics.thin import bucket_width, thinned, thinned_steps

FOREVER = 2**62
FEW = 2_000
"""Rows that a loop turns into columns sooner than arrays are set up: what a poll brings."""
CELLS = 2**22
"""Values (keys × steps) that are spread out in memory at once."""
SEEN = Cache(10_000)
"""(folder, attempt, step) → its `last_row_seen`: rows never change, so it is found once."""


def series(
    run_dir: Path, keys: Sequence[str] | None = None, since: int | None = None, max_points: int = 2000
) -> dict[str, Any]:
    """Columns of the steps after `since` (all steps when None; a curve may begin at step 0).

    Returns {rev, steps, times, columns, nonfinite, late, attempts, last_step, thinned, damaged}:
    - columns[key][i] belongs to steps[i]; None is absent, or not finite: those are listed in nonfinite[key] as
      [step, "nan" | "inf" | "-inf"].
    - late[key] = [[step, value], …]: values of steps up to `since` that were written after that step first appeared
      (an eval that took longer; the slots' shares of the step before). Put them into the curve by step.
    - rev grows when history changes (a resume): then read the run again from its beginning.
    - thinned is None, or {bucket_steps, points, of}: buckets keep their smallest and largest value (metrics/thin.py).
    - damaged names what could not be read.
    """
    folder, history = Path(run_dir) / FOLDER / "series", attempts(run_dir)
    seen = -1 if since is None else last_row_seen(folder, history, since)
    found = read(folder, lambda segment: segment.last_row > seen)
    rows = visible(found, history)
    if keys is not None:
        rows = rows.filter(pl.col("key").is_in(list(keys)))
    fresh, late = (rows, {}) if since is None else parted(above(rows, "row", seen), since)
    last = last_step(found.known, history)
    if last is not None:
        last_row_seen(folder, history, last)  # kept for the next delta, while the rows are at hand
    return columns_of(fresh, max_points) | {
        "rev": len(history),
        "late": late,
        "attempts": [{"attempt": one["attempt"], "first_step": one["resume_step"] + 1} for one in history],
        "last_step": last,
        "damaged": found.damaged,
    }


def last_row_seen(folder: Path, history: Sequence[Mapping[str, Any]], step: int) -> int:
    """Number of the last row that a reader has who knows the curve up to this step."""
    attempt = max((one["attempt"] for one in history if one["resume_step"] < step), default=0)
    place = (str(folder), attempt, step)
    kept = SEEN.get(place)
    if isinstance(kept, int):
        return kept
    row = end_of_message(folder, attempt, step)
    if row is None:
        return FOREVER
    SEEN.put(place, row, 1)
    return row


def end_of_message(folder: Path, attempt: int, step: int) -> int | None:
    """Last row of the first message of the attempt with values of the step; where later steps came without it, the row
    before them. None when nothing of the step or after it is there."""

    def holds(segment: Segment) -> bool:
        newest = segment.steps[1] if segment.steps else -1
        return newest >= step and any(its >= attempt and last >= step for its, last in last_steps(segment))

    first = next((segment for segment in manifest(folder).segments if holds(segment)), None)
    if first is None:
        return None
    if first.level == 0:
        return first.last_row if first.steps[1] == step else first.first_row - 1
    frames = read(folder, holds).frames
    rows = pl.concat(frames).filter(pl.col("attempt") >= attempt) if frames else pl.DataFrame()
    brought = rows.filter(pl.col("step") >= step).sort("row") if len(rows) else rows
    if not len(brought):
        return None
    # All values of one message have the same time.
    message = rows.filter(pl.col("time") == brought["time"][0])
    lowest, highest = message["row"].min(), message["row"].max()
    assert isinstance(lowest, int)
    assert isinstance(highest, int)
    return highest if brought["step"][0] == step else lowest - 1


def last_step(known: Manifest, history: Sequence[Mapping[str, Any]]) -> int | None:
    """The newest step of the curve: what attempts reached, up to where a later one took over."""
    ends = {attempt: end for attempt, end in visible_until(history).items() if end is not None}
    if not ends:
        return max((segment.steps[1] for segment in known.segments if segment.steps), default=None)
    reached = (pair for segment in known.segments for pair in last_steps(segment))
    return max((min(step, ends.get(attempt, FOREVER)) for attempt, step in reached), default=None)


def last_steps(segment: Segment) -> list[tuple[int, int]]:
    """(attempt, its newest step in the segment)."""
    if not segment.steps:
        return []
    if segment.attempts[0] == segment.attempts[1]:
        return [(segment.attempts[0], segment.steps[1])]
    return [(int(attempt), step) for attempt, step in segment.meta.get("last_steps", {}).items()]


def visible(found: Found, history: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of the newest attempt of each step; the tails that a resume abandoned are left out.

    For each key they are in the order of writing: segments follow each other, and a merged one is sorted by key and
    row.
    """
    if not found.frames:
        return nothing()
    rows = pl.concat(found.frames)
    ends = {attempt: end for attempt, end in visible_until(history).items() if end is not None}
    if ends:
        limit = pl.col("attempt").replace_strict(ends, default=FOREVER, return_dtype=pl.Int64)
        rows = rows.filter(pl.col("step") <= limit)
    return rows


def nothing() -> pl.DataFrame:
    frame = pl.from_arrow(SERIES.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(attempt=pl.lit(0, pl.Int32), row=pl.lit(0, pl.Int64)).clear()


def above(rows: pl.DataFrame, column: str, floor: int) -> pl.DataFrame:
    """The rows with more than that in a column of integers; the same frame when all have, since filtering is dear."""
    least = rows[column].min()
    assert least is None or isinstance(least, int)
    return rows if least is None or least > floor else rows.filter(pl.col(column) > floor)


def parted(rows: pl.DataFrame, since: int) -> tuple[pl.DataFrame, dict[str, list[list[Any]]]]:
    """Rows of new steps, and the values that came late for steps that are known."""
    fresh = above(rows, "step", since)
    late: dict[str, list[list[Any]]] = {}
    if fresh is not rows:
        old = rows.filter(pl.col("step") <= since).sort("row")
        for step, key, value in old.select("step", "key", "value").rows():
            late.setdefault(key, []).append([step, value if np.isfinite(value) else named(value)])
    return fresh, late


def columns_of(rows: pl.DataFrame, max_points: int) -> dict[str, Any]:
    """Long rows to one column a key. A later row of the same step and key wins."""
    if not len(rows):
        return {"steps": [], "times": [], "columns": {}, "nonfinite": {}, "thinned": None}
    if len(rows) <= FEW and max_points > FEW:
        return columns_of_few(rows)
    steps, place = distinct(rows["step"].to_numpy())
    times = np.full(len(steps), np.inf)
    np.minimum.at(times, place, rows["time"].to_numpy())  # when the step was logged: what came late does not move it
    width = bucket_width(steps, max_points)
    shown, starts = (steps, None) if width == 1 else thinned_steps(steps, width)
    columns: dict[str, list[float | None]] = {}
    nonfinite: dict[str, list[list[Any]]] = {}
    for names, table, marked in tables(rows, place, len(steps)):
        for row, at in np.argwhere(marked).tolist():
            nonfinite.setdefault(names[row], []).append([int(steps[at]), named(table[row, at])])
        table[marked] = np.nan
        few = table if starts is None else np.stack([thinned(column, starts) for column in table])
        columns |= dict(zip(names, listed(few), strict=True))
    at = times if starts is None else times[np.searchsorted(steps, shown)]
    said = None if starts is None else {"bucket_steps": width, "points": len(shown), "of": len(steps)}
    return {"steps": shown.tolist(), "times": at.tolist(), "columns": columns, "nonfinite": nonfinite, "thinned": said}


def columns_of_few(rows: pl.DataFrame) -> dict[str, Any]:
    """What columns_of returns when nothing is to be thinned."""
    lists = [rows[name].to_list() for name in ("step", "time", "key", "value")]
    if lists[0].count(lists[0][0]) == len(lists[0]):
        return columns_of_one(*lists)
    times: dict[int, float] = {}
    cells: dict[str, dict[int, float]] = {}
    for step, time, key, value in zip(*lists, strict=True):
        times[step] = min(time, times.get(step, np.inf))
        cells.setdefault(key, {})[step] = value
    steps = sorted(times)
    columns: dict[str, list[float | None]] = {}
    nonfinite: dict[str, list[list[Any]]] = {}
    for key in sorted(cells):
        found = cells[key]
        columns[key] = [value if (value := found.get(step)) is not None and isfinite(value) else None for step in steps]
        odd = [[step, named(found[step])] for step in steps if step in found and not isfinite(found[step])]
        if odd:
            nonfinite[key] = odd
    at = [times[step] for step in steps]
    return {"steps": steps, "times": at, "columns": columns, "nonfinite": nonfinite, "thinned": None}


def columns_of_one(steps: list[int], times: list[float], keys: list[str], values: list[float]) -> dict[str, Any]:
    """What columns_of returns of one step: nearly every poll."""
    step, found = steps[0], dict(zip(keys, values, strict=True))
    columns = {key: [value if isfinite(value := found[key]) else None] for key in sorted(found)}
    nonfinite = {key: [[step, named(found[key])]] for key, column in columns.items() if column[0] is None}
    return {"steps": [step], "times": [min(times)], "columns": columns, "nonfinite": nonfinite, "thinned": None}


def distinct(steps: Ints) -> tuple[Ints, Ints]:
    """The sorted distinct steps, and the place of each row's step among them. Without sorting when steps are dense."""
    first = int(steps.min())
    span = int(steps.max()) - first + 1
    if span > 4 * len(steps):
        unique, place = np.unique(steps, return_inverse=True)
        return unique, place
    present = np.zeros(span, dtype=bool)
    present[steps - first] = True
    return np.flatnonzero(present) + first, (np.cumsum(present) - 1)[steps - first]


def tables(rows: pl.DataFrame, place: Ints, num_steps: int) -> Iterator[tuple[list[str], Floats, np.ndarray]]:
    """Some keys at a time, in alphabetical order: names, values by (key, step) with NaN where there is none, and where
    a value is there that is not finite."""
    names, codes = coded(rows["key"])
    values = rows["value"].to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    width = max(1, CELLS // num_steps)
    for first in range(0, len(names), width):
        some = names[first : first + width]
        mine = order[bounds[first] : bounds[first + len(some)]]
        table = np.full((len(some), num_steps), np.nan)
        table[codes[mine] - first, place[mine]] = values[mine]
        marked = np.zeros(table.shape, dtype=bool)
        marked[codes[mine] - first, place[mine]] = True
        yield some, table, marked & ~np.isfinite(table)


def coded(keys: pl.Series) -> tuple[list[str], Ints]:
    """The distinct keys in alphabetical order, and the place of each row's key among them."""
    found = pc.dictionary_encode(keys.to_arrow())
    met = found.dictionary.to_pylist()
    names = sorted(met)
    place = {name: at for at, name in enumerate(names)}
    return names, np.array([place[name] for name in met], np.int64)[found.indices.to_numpy()]


def listed(table: Floats) -> list[list[float | None]]:
    columns: list[list[float | None]] = table.tolist()
    for row, at in np.argwhere(np.isnan(table)).tolist():
        columns[row][at] = None
    return columns


def named(value: float) -> str:
    """The text that stands for a value that is not finite."""
    return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"
