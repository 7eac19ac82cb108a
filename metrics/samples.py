"""Reading a run's samples and spans: filtered, sorted, in pages. Bulky columns are read for the rows of the page
only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from metrics.catalog import attempts, visible_until
from metrics.reader import read, verified_path
from metrics.schema import BULKY, SAMPLES, SPANS, Outcome
from metrics.segments import Segment
from metrics.store import FOLDER

EXTRA = ("attempt", "row")


def samples(
    run_dir: Path,
    *,
    step: int | None = None,
    env: str | None = None,
    outcome: str | Sequence[str] | None = None,
    group_id: int | None = None,
    sample_id: int | None = None,
    columns: Sequence[str] | None = None,
    search: str | None = None,
    sort: str | None = None,
    descending: bool = False,
    offset: int = 0,
    limit: int | None = 50,
    attempt: int | None = None,
) -> tuple[pl.DataFrame, int]:
    """A page of samples, and how many rows the conditions leave in all.

    Without `attempt`: of each step the newest attempt's. With it: all of that attempt's, its abandoned tail included.
    `search` is plain text, looked for in prompt and completion without regard to case. `sort` is a column, or
    `sample_metrics.<name>`. Rows without a value come last. outcome="eval" gives evaluated completions.
    """
    outcomes = [outcome] if isinstance(outcome, str) else None if outcome is None else [str(one) for one in outcome]
    table = "evals" if outcomes == [Outcome.EVAL] else "samples"
    folder = Path(run_dir) / FOLDER / table
    wanted = checked_columns(columns)
    bulky = [name for name in wanted if name in BULKY]
    searched = ["prompt", "completion"] if search else []
    first = list(dict.fromkeys([*(name for name in (*SAMPLES.names, *EXTRA) if name not in BULKY), *searched]))

    def here(segment: Segment) -> bool:
        return (step is None or segment.touches(step, step)) and (
            attempt is None or segment.attempts[0] <= attempt <= segment.attempts[1]
        )

    found = read(folder, here, first, keep=not searched)
    rows = pl.concat([empty(SAMPLES).select(first), *found.frames], how="diagonal")
    rows = rows.filter(shown_attempts(run_dir, attempt))
    if table == "evals" and attempt is None:  # a run that goes on from its very beginning evaluates step 0 again
        rows = rows.filter(pl.col("attempt") == pl.col("attempt").max().over("step", "env"))
    for name, value in (("step", step), ("env", env), ("group_id", group_id), ("sample_id", sample_id)):
        if value is not None:
            rows = rows.filter(pl.col(name) == value)
    if outcomes is not None:
        rows = rows.filter(pl.col("outcome").is_in(outcomes))
    if search:
        rows = rows.filter(holds(search, "prompt") | holds(search, "completion"))
    rows = ordered(rows, sort, descending)
    page = rows.slice(offset, limit)
    if bulky:
        page = with_bulky(folder, found.segments, page.drop(searched), bulky)
    return page.select(wanted), len(rows)


def every(run_dir: Path, columns: Sequence[str]) -> pl.DataFrame:
    """These columns of all samples that are shown, in the order of writing: for what is counted over a whole run."""
    wanted = checked_columns(columns)
    needed = list(dict.fromkeys([*wanted, "step", "attempt"]))
    found = read(Path(run_dir) / FOLDER / "samples", lambda _segment: True, needed)
    rows = pl.concat(found.frames) if found.frames else empty(SAMPLES)
    return rows.filter(shown_attempts(run_dir, None)).select(wanted)


def checked_columns(columns: Sequence[str] | None) -> list[str]:
    known = [*SAMPLES.names, *EXTRA]
    strange = [name for name in columns or () if name not in known]
    if strange:
        raise ValueError(f"unknown column {strange[0]!r}; known columns: {', '.join(known)}")
    return list(columns) if columns is not None else known


def shown_attempts(run_dir: Path, attempt: int | None) -> pl.Expr:
    if attempt is not None:
        return pl.col("attempt") == attempt
    ends = {number: end for number, end in visible_until(attempts(run_dir)).items() if end is not None}
    if not ends:
        return pl.lit(True)
    return pl.col("step") <= pl.col("attempt").replace_strict(ends, default=2**62, return_dtype=pl.Int64)


def holds(text: str, column: str) -> pl.Expr:
    return pl.col(column).str.contains("(?i)" + pl.escape_regex(text)).fill_null(False)


def ordered(rows: pl.DataFrame, sort: str | None, descending: bool) -> pl.DataFrame:
    if sort is None:
        return rows.sort(
            "step",
            "group_id",
            "sample_id",
            "attempt",
            descending=[descending, False, False, False],
            maintain_order=True,
        )
    return rows.sort(sort_key(rows, sort), descending=descending, nulls_last=True, maintain_order=True)


def sort_key(rows: pl.DataFrame, sort: str) -> pl.Expr:
    kind, _, name = sort.partition(".")
    if kind == "sample_metrics" and name:
        pairs = pl.col("sample_metrics").cast(pl.List(pl.Struct({"key": pl.String, "value": pl.Float64})))
        same = pairs.list.eval(pl.element().filter(pl.element().struct.field("key") == name).struct.field("value"))
        return same.list.first()
    if sort not in rows.columns or rows.schema[sort].is_nested():
        raise ValueError(
            f"cannot sort by {sort!r}; use one of "
            f"{', '.join(c for c in rows.columns if not rows.schema[c].is_nested())}"
        )
    return pl.col(sort)


def with_bulky(folder: Path, segments: list[Segment], page: pl.DataFrame, bulky: list[str]) -> pl.DataFrame:
    """The page with its texts and token lists: of each segment only the parts that hold its rows are decoded.

    A column that a segment of an older version lacks is absent.
    """
    frames = [empty(SAMPLES).select(*bulky, "row")]
    for segment in segments:
        mine = page.filter(pl.col("row").is_between(segment.first_row, segment.last_row))["row"].to_list()
        if mine:
            lazy = pl.scan_parquet(verified_path(folder, segment))
            known = lazy.collect_schema()
            has = [name for name in bulky if name in known]
            frames.append(lazy.select(*has, "row").filter(pl.col("row").is_in(mine)).collect())
    return page.join(pl.concat(frames, how="diagonal"), on="row", how="left", maintain_order="left")


def spans(run_dir: Path, step_from: int, step_to: int, attempt: int | None = None) -> pl.DataFrame:
    """The spans charged to the steps from step_from to step_to, both included, in the order of their start."""
    found = read(Path(run_dir) / FOLDER / "spans", lambda segment: segment.touches(step_from, step_to))
    rows = pl.concat(found.frames) if found.frames else empty(SPANS)
    rows = rows.filter(pl.col("step").is_between(step_from, step_to), shown_attempts(run_dir, attempt))
    return rows.sort("attempt", "step", "start_s", "lane", maintain_order=True)


def empty(schema: pa.Schema) -> pl.DataFrame:
    fields: list[Any] = [*schema, pa.field("attempt", pa.int32()), pa.field("row", pa.int64())]
    frame = pl.from_arrow(pa.schema(fields).empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame
