"""Reading runs. Needs nothing but the run directory: no Ray, no running job; it may be read while it is written.

A run is a folder with run.json; its numbers are in `metrics/` (metrics/store.py says what is there).
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from metrics import bias as selection_bias
from metrics.catalog import attempts, catalog
from metrics.reader import journal, read, remembered, stamps
from metrics.samples import every, samples, spans
from metrics.segments import MANIFEST
from metrics.series import series
from metrics.store import ATTEMPTS, CHECKS, FOLDER, TABLES

__all__ = ["attempts", "bias", "catalog", "checks", "damaged", "run", "runs", "samples", "series", "spans"]

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
    files = (folder / "run.json", folder / FOLDER / "series" / MANIFEST, folder / FOLDER / ATTEMPTS)
    about = remembered(("run", str(folder)), stamps(*files), lambda: summary(folder))
    return about | {"elapsed_s": elapsed(about)}


def summary(folder: Path) -> dict[str, Any]:
    """What a run is and where it stands, without what changes by itself."""
    try:
        about = orjson.loads((folder / "run.json").read_bytes())
        if not isinstance(about, dict):
            raise ValueError("it does not hold an object")
    except (OSError, ValueError) as error:
        about = {"state": "unreadable", "reason": f"run.json: {error}"}
    about = {"name": folder.name, "steps": None, **about, "id": folder.name}
    curve = series(folder, keys=list(HEADLINES), max_points=SPARKLINE_POINTS)
    latest = {key: last_value(column) for key, column in curve["columns"].items()}
    reward = curve["columns"].get("reward_mean", [])
    return about | {"last_step": curve["last_step"], "latest": latest, "sparkline": reward}


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


def checks(run_dir: Path) -> list[dict[str, Any]]:
    """Each self-check that ever failed: its newest line, whether it is ok by now, and how often and where it failed."""
    by_name: dict[str, dict[str, Any]] = {}
    lines = journal(Path(run_dir) / FOLDER / CHECKS).items
    for item in {(line["attempt"], line["step"], line["check"], line["ok"]): line for line in lines}.values():
        entry = by_name.setdefault(item["check"], {"failures": 0, "first_failed_step": None, "last_failed_step": None})
        if not item["ok"]:
            entry["failures"] += 1
            entry["last_failed_step"] = item["step"]
            if entry["first_failed_step"] is None:
                entry["first_failed_step"] = item["step"]
        entry.update(item)
    return sorted(by_name.values(), key=lambda entry: (entry["ok"], entry["check"]))


def damaged(run_dir: Path, tables: Sequence[str] = tuple(TABLES)) -> list[str]:
    """Every part of the run's metrics that cannot be read, in words. Empty for a healthy run."""
    root = Path(run_dir) / FOLDER
    found = [f"{name}: line {n} is damaged" for name in (ATTEMPTS, CHECKS) for n in journal(root / name).damaged]
    for table in tables:
        found += read(root / table, lambda segment: True, ["step"], keep=False).damaged
    return found


def bias(run_dir: Path) -> pl.DataFrame:
    """What selection throws away: drop rates by reason, environment and length bucket (metrics/bias.py)."""
    return selection_bias.drop_rates(every(run_dir, ["step", "env", "outcome", "reward", "completion_tokens"]))
