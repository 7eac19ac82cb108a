"""A run's tables as one file: CSV, Parquet or JSON. Absent, zero and not finite stay three different things in each.

CSV: absent is an empty cell, else `NaN`, `inf`, `-inf`; a text that a spreadsheet would run as a formula is led by an
apostrophe. Parquet: absent is null. JSON is strict (any parser reads it): absent is null, and a value that is not
finite is null too and listed by step under `nonfinite`.
"""

import csv
import io
import re
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from metrics.read import samples, series, spans
from metrics.schema import marked

FORMATS = ("csv", "parquet", "json")
TABLES = ("series", "samples", "evals", "spans")
EVERYTHING = 2**62
FORMULA = re.compile(r"[=+\-@\t\r]")
"""First characters that make a spreadsheet run a text, see OWASP, "CSV injection"."""


def export(run_dir: Path, table: str, kind: str, target: Path) -> int:
    """Write the table to the target; returns the number of rows."""
    if table == "series" and kind == "json":
        found = everything(run_dir)
        target.write_bytes(
            orjson.dumps({name: found[name] for name in ("steps", "times", "columns", "nonfinite", "attempts")})
        )
        return len(found["steps"])
    frame = wide(run_dir) if table == "series" else rows_of(run_dir, table)
    if kind == "csv":
        target.write_text(csv_text(frame), encoding="utf-8", newline="")
    elif kind == "parquet":
        frame.write_parquet(target)
    else:
        target.write_bytes(
            b"".join(orjson.dumps(marked(row), option=orjson.OPT_APPEND_NEWLINE) for row in frame.iter_rows(named=True))
        )
    return len(frame)


def everything(run_dir: Path) -> dict[str, Any]:
    return series(run_dir, max_points=EVERYTHING)


def wide(run_dir: Path) -> pl.DataFrame:
    """One row a step, one column a key; NaN and infinities in their places."""
    found = everything(run_dir)
    place = {step: row for row, step in enumerate(found["steps"])}
    columns = {}
    for key, column in sorted(found["columns"].items()):
        values = list(column)
        for step, name in found["nonfinite"].get(key, ()):
            values[place[step]] = float(name)
        columns[key] = pl.Series(values, dtype=pl.Float64)
    return pl.DataFrame(
        {
            "step": pl.Series(found["steps"], dtype=pl.Int64),
            "time": pl.Series(found["times"], dtype=pl.Float64),
            **columns,
        }
    )


def rows_of(run_dir: Path, table: str) -> pl.DataFrame:
    if table == "spans":
        return spans(run_dir, -EVERYTHING, EVERYTHING)
    return samples(run_dir, outcome="eval" if table == "evals" else None, limit=None)[0]


def csv_text(frame: pl.DataFrame) -> str:
    """As CSV can hold it: lists and maps as JSON text, since a cell holds one value, and no text that is a formula."""
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    texts = [
        pl.Series(
            name,
            [None if v is None else orjson.dumps(marked(v)).decode() for v in frame[name].to_list()],
            dtype=pl.String,
        )
        for name in nested
    ]
    head = io.StringIO()
    csv.writer(head, lineterminator="\n").writerow([inert(name) for name in frame.columns])
    plain = frame.with_columns(texts).with_columns(pl.col(pl.String).str.replace(f"^({FORMULA.pattern})", "'$1"))
    return head.getvalue() + plain.write_csv(include_header=False)


def inert(text: str) -> str:
    """The text, led by an apostrophe where a spreadsheet would take it for a formula."""
    return f"'{text}" if FORMULA.match(text) else text
