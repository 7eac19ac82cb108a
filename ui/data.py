"""Routes for step metrics: which metrics exist, their columns, what is new, and files to take away."""

import io
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
from fastapi import APIRouter, HTTPException, Query, Request, Response

from metrics import read
from metrics.export import csv_text
from ui import records
from ui.history import EVERYTHING, Histories, Window
from ui.names import NoRun, run_dir, run_ids, whole_number
from ui.replies import reply, tagged
from ui.sections import environments_of, in_order, placed


def routes(root: Path, histories: Histories) -> APIRouter:
    api = APIRouter()

    @api.get("/catalog")
    def catalog(request: Request, runs: str = "") -> Response:
        """Every metric of the given runs with its definition; ranges are kept per run."""
        return tagged(request, {"metrics": merged_catalog(root, run_ids(runs))})

    @api.get("/delta")
    def delta(c: str, keys: str | None = None) -> Response:
        """Rows after each cursor `run:step:rev:num_keys`; new key names are listed once, columns go by their index."""
        wanted = set(_keys(keys)) if keys else None
        return reply({"runs": [_delta(root, histories, cursor, wanted) for cursor in c.split(",")[:32] if cursor]})

    @api.get("/series")
    def series(
        run: str,
        keys: str = "",
        first: int = Query(0, alias="from", ge=0, le=EVERYTHING),
        last: int = Query(EVERYTHING, alias="to", ge=0, le=EVERYTHING),
        max_points: int = Query(2000, alias="max", ge=6, le=1_000_000),
        grid: str | None = None,
        fmt: str = "json",
    ) -> Response:
        """Columns of a run, thinned beyond `max` rows; `fmt=f32` sends them as raw floats."""
        one_of(fmt, "json", "f32")
        history = histories.get(run_dir(root, run))
        wanted = _keys(keys) or list(history.keys)
        with history.lock:
            window = history.window(wanted, first, last, max_points, _grid(grid))
            head = {
                "rev": history.rev,
                "all_keys": history.keys,
                "attempts": history.attempts,
                "last_step": history.last_step,
            }
        return _packed(head, window) if fmt == "f32" else reply({**head, **_plain(window)})

    @api.get("/export")
    def export(runs: str, keys: str = "", fmt: str = "csv") -> Response:
        """Full columns of several runs as one CSV or Parquet file."""
        one_of(fmt, "csv", "parquet")
        frame = exported(root, histories, run_ids(runs), _keys(keys))
        if fmt == "parquet":
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            return _file(buffer.getvalue(), "metrics.parquet", "application/vnd.apache.parquet")
        return _file(csv_text(frame).encode(), "metrics.csv", "text/csv; charset=utf-8")

    return api


def one_of(fmt: str, *formats: str) -> None:
    if fmt not in formats:
        raise HTTPException(400, f"fmt {fmt[:40]!r}: one of {', '.join(formats)}")


def _keys(text: str | None) -> list[str]:
    """Keys are separated by newlines: the one kind of character that no key may hold."""
    return [key for key in (text or "").split("\n") if key]


def _grid(text: str | None) -> tuple[int, int] | None:
    if not text:
        return None
    first, _, second = text.partition(":")
    bucket, thin_to = whole_number(first), whole_number(second.removeprefix("-"))
    if bucket is None or thin_to is None:
        raise HTTPException(400, f"grid {text[:40]!r}: two whole numbers 'bucket:thin_to' are wanted")
    return max(1, bucket), -thin_to if second.startswith("-") else thin_to


def _delta(root: Path, histories: Histories, cursor: str, keys: set[str] | None) -> dict[str, Any]:
    run_id, _, rest = cursor.partition(":")
    step, rev, known = [*rest.split(":"), "", "", ""][:3]
    after = whole_number(step or "0")
    if after is None:
        raise HTTPException(400, f"cursor {cursor[:120]!r}: 'run:step:rev' is wanted")
    try:
        history = histories.get(run_dir(root, run_id))
    except (NoRun, FileNotFoundError):
        return {"run": run_id, "gone": True}  # of several runs on a page one was removed: the others go on
    with history.lock:
        found = history.delta(after, rev, keys)
        found |= state_of(root / run_id)
        found["new_keys"] = history.keys[whole_number(known) or 0 :]
        if found["reset"]:
            # The browser reloads its columns with /series: rows that it throws away are not worth sending.
            found.update(steps=[], times=[], columns={}, nonfinite={}, attempts=history.attempts)
    return {"run": run_id, **found}


def state_of(directory: Path) -> dict[str, str | None]:
    """The state of a run, and what its start is doing."""
    about = records.written(directory)
    about |= records.unsaid_end(directory, about.get("state"))
    return {name: records.text(about.get(name)) for name in ("state", "phase")}


def _plain(window: Window) -> dict[str, Any]:
    columns = {
        key: [None if value != value else value for value in window.table[:, i].tolist()]
        for i, key in enumerate(window.keys)
    }
    steps = [int(step) if step == int(step) else step for step in window.steps.tolist()]
    return {
        "steps": steps,
        "times": window.times.tolist(),
        "columns": columns,
        "nonfinite": window.nonfinite,
        "grid": [window.bucket, window.thin_to],
    }


def _packed(head: dict[str, Any], window: Window) -> Response:
    """uint32 length of the head, the head as JSON, padding to 8 bytes, steps and times as float64, then columns.

    Columns are float32 unless a value would overflow it; NaN means absent (non-finite points are listed in the head).
    """
    with np.errstate(invalid="ignore"):
        wide = bool((np.abs(window.table) > 1e38).any())
    info = {
        **head,
        "keys": window.keys,
        "rows": len(window.steps),
        "type": "f64" if wide else "f32",
        "nonfinite": window.nonfinite,
        "grid": [window.bucket, window.thin_to],
    }
    text = orjson.dumps(info)
    text += b" " * (-(len(text) + 4) % 8)
    columns = np.ascontiguousarray(window.table.T, np.float64 if wide else np.float32)
    body = struct.pack("<I", len(text)) + text
    body += window.steps.astype("<f8").tobytes() + window.times.astype("<f8").tobytes() + columns.tobytes()
    return Response(body, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


def merged_catalog(root: Path, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The metrics of several runs as one list; kept by run are the range that it declares for a metric, and
    the same with the observed side wherever it declares none."""
    merged: dict[str, dict[str, Any]] = {}
    for run_id in ids:
        catalog = _catalog(root, run_id)
        environments = environments_of(catalog)
        for found in catalog:
            for entry in (found, *_companions(found)):
                own = placed(entry, environments)
                known = merged.setdefault(entry["key"], {**own, "ranges": {}, "bounds": {}})
                known["stats"] = {**entry["stats"], **known["stats"]}
                known["ranges"][run_id] = entry["declared"]
                known["bounds"][run_id] = entry["range"]
    return in_order(merged.values())


def _catalog(root: Path, run_id: str) -> list[dict[str, Any]]:
    try:
        return read.catalog(run_dir(root, run_id))
    except (NoRun, FileNotFoundError):
        return []  # removed while it is looked at; the poll says so


def _companions(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Statistics of a distribution that do not fit into its chart get one of their own."""
    key = entry["stats"].get("gini_mean")
    if key is None:
        return []
    said = "Mean over groups of the Gini coefficient within the group: 0 when all members are equal."
    own = {"key": key, "name": f"{entry['name']}_gini_mean", "kind": "scalar", "stats": {}, "definition": said}
    bounds = {"declared": [0.0, 1.0], "range": [0.0, 1.0], "range_source": "declared", "invert": False, "unit": ""}
    return [{**entry, **own, **bounds}]


def exported(root: Path, histories: Histories, ids: list[str], keys: list[str]) -> pl.DataFrame:
    frames = []
    for run_id in ids:
        history = histories.get(run_dir(root, run_id))
        with history.lock:
            window = history.window(keys or list(history.keys), 0, EVERYTHING, EVERYTHING, None)
        frame = pl.DataFrame({"step": window.steps.astype(np.int64), "time": window.times})
        columns = {key: pl.Series(key, window.table[:, i]).fill_nan(None) for i, key in enumerate(window.keys)}
        for key, points in window.nonfinite.items():
            columns[key] = _with_nonfinite(columns[key], frame["step"].to_list(), points)
        frames.append(frame.with_columns(pl.lit(run_id).alias("run"), *(v.alias(k) for k, v in columns.items())))
    if not frames:
        raise HTTPException(400, "export: name at least one run, as runs=<id>,<id>")
    whole = pl.concat(frames, how="diagonal")
    return whole.select("run", "step", "time", *(c for c in whole.columns if c not in ("run", "step", "time")))


def _with_nonfinite(column: pl.Series, steps: list[int], points: list[list[Any]]) -> pl.Series:
    values, place = column.to_list(), {step: i for i, step in enumerate(steps)}
    for step, kind in points:
        if step in place:
            values[place[step]] = float(kind)
    return pl.Series(column.name, values, pl.Float64)


def _file(body: bytes, name: str, kind: str) -> Response:
    return Response(body, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
