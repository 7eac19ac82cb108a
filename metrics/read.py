"""Reading runs. Needs nothing but the run directory: no Ray, no running job; it may be read while it is written.

A run is a folder with run.json; its numbers are in `metrics/` (metrics/store.py says what is there).
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from metrics import bias as selection_bias
from metrics.catalog import attempts, catalog, visible_until
from metrics.journal import read_lines
from metrics.numbers import Ints
from metrics.reader import Found, manifest, read
from metrics.samples import samples, spans
from metrics.store import CHECKS, FOLDER
from metrics.thin import bucket_width, thinned, thinned_steps

__all__ = ["attempts", "bias", "catalog", "checks", "compare", "damaged", "run", "runs", "samples", "series", "spans"]

HEADLINES = (
    "reward_mean",
    "generated/reward_mean",
    "entropy",
    "loss/policy",
    "grad_norm",
    "timing_step_total",
    "tokens_completion_mean",
)
SPARKLINE_POINTS = 60


def runs(root: Path) -> list[dict[str, Any]]:
    """Every run below the root, newest first: run.json, and `last_step`, `elapsed_s`, `latest` (headline values),
    `sparkline`."""
    found = [run(root, path.parent.name) for path in Path(root).glob("*/run.json")]
    return sorted(found, key=lambda item: (seconds(item.get("created_at")) or 0.0, item["id"]), reverse=True)


def run(root: Path, run_id: str) -> dict[str, Any]:
    """One run. A run.json that cannot be read gives the state `unreadable` and the reason."""
    folder = run_folder(root, run_id)
    try:
        about = orjson.loads((folder / "run.json").read_bytes())
        if not isinstance(about, dict):
            raise ValueError("it does not hold an object")
    except (OSError, ValueError) as error:
        about = {"state": "unreadable", "reason": f"run.json: {error}"}
    about = {"name": run_id, "steps": None, **about, "id": run_id}
    curve = series(folder, keys=list(HEADLINES), max_points=SPARKLINE_POINTS)
    latest = {key: last_value(column) for key, column in curve["columns"].items()}
    reward = curve["columns"].get("reward_mean", [])
    return about | {"last_step": curve["last_step"], "elapsed_s": elapsed(about), "latest": latest, "sparkline": reward}


def run_folder(root: Path, run_id: str) -> Path:
    """The folder of a run: one plain name directly below the root, never a path out of it."""
    if not run_id or run_id in (".", "..") or Path(run_id).name != run_id or "\0" in run_id or "\\" in run_id:
        raise ValueError(f"run id {run_id!r} must be the name of a folder, without slashes")
    return Path(root) / run_id


def last_value(column: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(column) if value is not None), None)


def elapsed(about: dict[str, Any]) -> float | None:
    """Seconds since the start, up to the end or to now. Never negative, whatever the clocks say."""
    start, end = seconds(about.get("started_at")), seconds(about.get("ended_at"))
    if start is None:
        return None
    return max(0.0, (end if end is not None else time.time()) - start)


def seconds(moment: Any) -> float | None:
    """Unix seconds of a number or an ISO text."""
    from datetime import datetime

    if isinstance(moment, int | float):
        return float(moment)
    try:
        return datetime.fromisoformat(moment).timestamp() if isinstance(moment, str) else None
    except ValueError:
        return None


def series(
    run_dir: Path, keys: Sequence[str] | None = None, since: int | None = None, max_points: int = 2000
) -> dict[str, Any]:
    """Columns of the steps after `since` (all steps when None; a curve may begin at step 0).

    Returns {rev, steps, times, columns, nonfinite, late, attempts, last_step, thinned, damaged}:
    - columns[key][i] belongs to steps[i]; None is absent, or not finite: those are listed in nonfinite[key] as
      [step, "nan" | "inf" | "-inf"].
    - late[key] = [[step, value], …]: values of steps up to `since` that were written after that step first appeared
      (an eval that took longer; the slots' shares of the step before). Put them into the curve by step.
    - rev grows when history changes (a resume, damage): then read the run again from its beginning.
    - thinned is None, or {bucket_steps, points, of}: buckets keep their smallest and largest value (metrics/thin.py).
    """
    folder = Path(run_dir) / FOLDER / "series"
    floor = -(2**62) if since is None else since
    known = manifest(folder)
    mark = first_message_of(folder, since)
    found = read(folder, lambda s: s.steps[1] > floor or (mark is not None and s.last_row > mark[0]))
    rows = visible(found, attempts(run_dir))
    if keys is not None:
        rows = rows.filter(pl.col("key").is_in(list(keys)))
    fresh = rows.filter(pl.col("step") > floor)
    result = columns_of(fresh, max_points)
    history = [{"attempt": one["attempt"], "first_step": one["resume_step"] + 1} for one in attempts(run_dir)]
    last_step = max((s.steps[1] for s in known.segments if s.steps), default=None)
    if len(history) > 1 and last_step is not None:
        last_step = newest_step(folder, run_dir)
    return result | {
        "rev": len(history) + len(found.damaged),
        "late": late_values(rows.filter(pl.col("step") <= floor), mark),
        "attempts": history,
        "last_step": last_step,
        "damaged": found.damaged,
    }


def first_message_of(folder: Path, step: int | None) -> tuple[int, float] | None:
    """Row and time of the first value that was written for the step or a later one: what comes after it may be late.

    All values of one message have the same time; that tells them from those that came later.
    """
    if step is None:
        return None
    firsts = []
    for frame in read(folder, lambda s: s.steps[1] >= step).frames:
        rows = frame.filter(pl.col("step") >= step)
        if len(rows):
            firsts.append(rows.sort("row").select("row", "time").row(0))
    return min(firsts, default=None)


def newest_step(folder: Path, run_dir: Path) -> int | None:
    rows = visible(read(folder, lambda s: True), attempts(run_dir))
    return int(rows["step"].max()) if len(rows) else None  # type: ignore[arg-type]


def visible(found: Found, history: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows of the newest attempt of each step; the tails that a resume abandoned are left out.

    For each key they are in the order of writing: segments follow each other, and a merged one is sorted by key and
    row.
    """
    if not found.frames:
        return pl.DataFrame(
            schema={
                "step": pl.Int64,
                "time": pl.Float64,
                "key": pl.String,
                "value": pl.Float64,
                "attempt": pl.Int32,
                "row": pl.Int64,
            }
        )
    rows = pl.concat(found.frames)
    ends = visible_until(history)
    if any(end is not None for end in ends.values()):
        limit = pl.col("attempt").replace_strict(
            {a: e for a, e in ends.items() if e is not None}, default=2**62, return_dtype=pl.Int64
        )
        rows = rows.filter(pl.col("step") <= limit)
    return rows


def columns_of(rows: pl.DataFrame, max_points: int) -> dict[str, Any]:
    """Long rows to one column a key. A later row of the same step and key wins."""
    if not len(rows):
        return {"steps": [], "times": [], "columns": {}, "nonfinite": {}, "thinned": None}
    steps, place = distinct(rows["step"].to_numpy())
    times = np.full(len(steps), np.inf)
    np.minimum.at(times, place, rows["time"].to_numpy())  # when the step was logged: what came late does not move it
    width = bucket_width(steps, max_points)
    shown, starts = (steps, None) if width == 1 else thinned_steps(steps, width)
    columns: dict[str, list[float | None]] = {}
    nonfinite: dict[str, list[list[Any]]] = {}
    for key, mine, values in by_key(rows, place):
        column = np.full(len(steps), np.nan)
        column[mine] = values
        infinite = np.zeros(len(steps), dtype=bool)
        infinite[mine] = ~np.isfinite(values)
        if infinite.any():
            nonfinite[key] = [[int(steps[i]), named(column[i])] for i in np.flatnonzero(infinite)]
            column[infinite] = np.nan
        columns[key] = listed(column if starts is None else thinned(column, starts))
    at = times if starts is None else times[np.searchsorted(steps, shown)]
    said = None if starts is None else {"bucket_steps": width, "points": len(shown), "of": len(steps)}
    return {"steps": shown.tolist(), "times": at.tolist(), "columns": columns, "nonfinite": nonfinite, "thinned": said}


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


def by_key(rows: pl.DataFrame, place: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Per key, in alphabetical order: the places of its steps and its values, in the order of writing."""
    names = rows["key"].unique().sort()
    codes = rows["key"].cast(pl.Enum(names)).to_physical().to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    values = rows["value"].to_numpy()
    return [
        (name, place[order[bounds[i] : bounds[i + 1]]], values[order[bounds[i] : bounds[i + 1]]])
        for i, name in enumerate(names.to_list())
    ]


def listed(column: np.ndarray) -> list[float | None]:
    values: list[float | None] = column.tolist()
    for i in np.flatnonzero(np.isnan(column)).tolist():
        values[i] = None
    return values


def named(value: float) -> str:
    """The text that stands for a value that is not finite."""
    return "nan" if np.isnan(value) else "inf" if value > 0 else "-inf"


def late_values(rows: pl.DataFrame, mark: tuple[int, float] | None) -> dict[str, list[list[Any]]]:
    if mark is None or not len(rows):
        return {}
    late: dict[str, list[list[Any]]] = {}
    for step, key, value in (
        rows.filter(pl.col("row") > mark[0], pl.col("time") != mark[1])
        .sort("row")
        .select("step", "key", "value")
        .rows()
    ):
        late.setdefault(key, []).append([step, value if np.isfinite(value) else named(value)])
    return late


def checks(run_dir: Path) -> list[dict[str, Any]]:
    """Each self-check that ever failed: its newest line, whether it is ok by now, and how often and where it failed."""
    by_name: dict[str, dict[str, Any]] = {}
    lines = read_lines(Path(run_dir) / FOLDER / CHECKS).items
    for item in {(line["attempt"], line["step"], line["check"], line["ok"]): line for line in lines}.values():
        entry = by_name.setdefault(item["check"], {"failures": 0, "first_failed_step": None, "last_failed_step": None})
        if not item["ok"]:
            entry["failures"] += 1
            entry["last_failed_step"] = item["step"]
            if entry["first_failed_step"] is None:
                entry["first_failed_step"] = item["step"]
        entry.update(item)
    return sorted(by_name.values(), key=lambda entry: (entry["ok"], entry["check"]))


def damaged(run_dir: Path) -> list[str]:
    """Every part of the run's metrics that cannot be read, in words. Empty for a healthy run."""
    from metrics.store import TABLES

    root = Path(run_dir) / FOLDER
    return [text for table in TABLES for text in read(root / table, lambda s: True, ["step"], keep=False).damaged]


def compare(root: Path, ids: Sequence[str]) -> dict[str, Any]:
    """Runs side by side: their descriptions, each key's last value per run, and the config keys in which they
    differ."""
    folders = {run_id: run_folder(root, run_id) for run_id in ids}
    curves = {run_id: series(folder, max_points=4) for run_id, folder in folders.items()}
    keys = sorted({key for curve in curves.values() for key in curve["columns"]})
    configs = {run_id: flat((attempts(folder) or [{}])[-1].get("config") or {}) for run_id, folder in folders.items()}
    names = sorted({name for config in configs.values() for name in config})
    rows = {name: {run_id: config.get(name) for run_id, config in configs.items()} for name in names}
    return {
        "runs": [run(root, run_id) for run_id in ids],
        "last": {
            key: {run_id: last_value(curve["columns"].get(key, [])) for run_id, curve in curves.items()} for key in keys
        },
        "config_diff": {
            name: row for name, row in rows.items() if len({orjson.dumps(value) for value in row.values()}) > 1
        },
    }


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def bias(run_dir: Path, step_from: int | None = None, step_to: int | None = None) -> pl.DataFrame:
    """What selection throws away: drop rates by reason, environment and length bucket (metrics/bias.py)."""
    narrow = ["step", "env", "outcome", "reward", "completion_tokens"]
    rows, _ = samples(run_dir, columns=narrow, limit=None)
    if step_from is not None:
        rows = rows.filter(pl.col("step") >= step_from)
    if step_to is not None:
        rows = rows.filter(pl.col("step") <= step_to)
    return selection_bias.drop_rates(rows)
