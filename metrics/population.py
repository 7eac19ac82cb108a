"""The rows that a number is computed over: the samples of a step, arranged so that every metric is a short function.

Rows are put in the order (group, sample) first. That makes groups contiguous, and every result the same to the last bit
whatever the order of arrival or the split into messages was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from metrics.numbers import Column, Floats, Ints
from metrics.schema import BINS, SAMPLES, Outcome

DTYPES: dict[str, Any] = {
    "step": pl.Int64,
    "env": pl.String,
    "group_id": pl.Int64,
    "sample_id": pl.Int64,
    "outcome": pl.String,
    "outcome_reason": pl.String,
    "reward": pl.Float64,
    "advantage": pl.Float64,
    "prompt_tokens": pl.Int64,
    "completion_tokens": pl.Int64,
    "total_tokens": pl.Int64,
    "num_turns": pl.Int64,
    "truncated_turns": pl.Int64,
    "off_policy_steps": pl.Int64,
    "generate_start_s": pl.Float64,
    "generate_end_s": pl.Float64,
    "turn_times_s": pl.List(pl.Float64),
    "reward_start_s": pl.Float64,
    "reward_end_s": pl.Float64,
}
PAIRS = pl.List(pl.Struct({"key": pl.String, "value": pl.Float64}))


def arranged(samples: pl.DataFrame) -> pl.DataFrame:
    """The columns that statistics read, typed, in the order (group, sample). Columns that are not there are absent."""
    columns = [
        pl.col(name).cast(kind) if name in samples.columns else pl.lit(None, dtype=kind).alias(name)
        for name, kind in DTYPES.items()
    ]
    rows = kept(samples.select(*columns, pairs(samples)), pl.col("outcome").is_in(BINS))
    return rows if is_arranged(rows) else rows.sort("group_id", "sample_id", maintain_order=True)


def kept(rows: pl.DataFrame, condition: pl.Expr) -> pl.DataFrame:
    """The rows that meet the condition; the same frame when all do, since lists are dear to copy."""
    mask = rows.select(condition.fill_null(False))[:, 0]
    return rows if mask.all() else rows.filter(mask)


def is_arranged(rows: pl.DataFrame) -> bool:
    if rows["group_id"].null_count() or rows["sample_id"].null_count():
        return False
    groups, samples = np.diff(rows["group_id"].to_numpy()), np.diff(rows["sample_id"].to_numpy())
    return bool(((groups > 0) | ((groups == 0) & (samples >= 0))).all())


def pairs(samples: pl.DataFrame) -> pl.Expr:
    """`sample_metrics` as a list of {key, value}, whether it came as an Arrow map, as that list, or as a struct."""
    kind = samples.schema.get("sample_metrics")
    if kind is None or kind == pl.Null:
        return pl.lit(None, dtype=PAIRS).alias("sample_metrics")
    if isinstance(kind, pl.Struct):
        fields = [
            pl.struct(
                pl.lit(field.name).alias("key"),
                pl.col("sample_metrics").struct.field(field.name).cast(pl.Float64).alias("value"),
            )
            for field in kind.fields
        ]
        return (
            pl.concat_list(fields).alias("sample_metrics")
            if fields
            else pl.lit(None, dtype=PAIRS).alias("sample_metrics")
        )
    return pl.col("sample_metrics").cast(PAIRS)


class Population:
    """Samples over which numbers are computed. Built from arranged rows; columns are read once."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        self.known: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def groups(self) -> Ints:
        return self.rows["group_id"].to_numpy()

    def column(self, name: str) -> Column:
        if name not in self.known:
            self.known[name] = column_of(self.rows[name], self.groups)
        return self.known[name]

    def where(self, condition: pl.Expr) -> "Population":
        rows = kept(self.rows, condition)
        return self if rows is self.rows else Population(rows)

    def of(self, *outcomes: Outcome) -> "Population":
        return self.where(pl.col("outcome").is_in([str(outcome) for outcome in outcomes]))

    def environments(self) -> Iterator[tuple[str, "Population"]]:
        names = self.rows["env"].unique().sort().to_list()
        if len(names) == 1:
            yield names[0], self
            return
        for name in names:
            yield name, self.where(pl.col("env") == name)

    def total(self, name: str) -> int:
        """Sum of a column of counts, as a Python integer: it cannot wrap."""
        column = self.rows[name].drop_nulls()
        return int(column.cast(pl.Int128).sum()) if len(column) else 0

    def blocks(self) -> Iterator["Block"]:
        """The environment's own numbers, over the samples that have them; names of the same samples share a block."""
        lists = self.rows["sample_metrics"].fill_null([])
        flat = lists.explode(empty_as_null=False) if len(lists) else lists
        flat_rows = (
            np.repeat(np.arange(len(lists)), lists.list.len().to_numpy()) if len(flat) else np.empty(0, np.int64)
        )
        present = flat.struct.field("value").is_not_null() if len(flat) else pl.Series([], dtype=pl.Boolean)
        if not present.any():
            return
        names, codes = coded(flat.struct.field("key").filter(present))
        values, rows = flat.struct.field("value").filter(present).to_numpy(), flat_rows[present.to_numpy()]
        if is_repeated(codes, len(names), len(self)):
            yield Block(
                [names[code] for code in codes[: len(names)]], values.reshape(-1, len(names)).T.copy(), self.groups
            )
            return
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
        together: dict[bytes, list[int]] = {}
        for code in range(len(names)):
            together.setdefault(rows[order[bounds[code] : bounds[code + 1]]].tobytes(), []).append(code)
        for members in together.values():
            places = np.stack([order[bounds[code] : bounds[code + 1]] for code in members])
            yield Block([names[code] for code in members], values[places], self.groups[rows[places[0]]])


@dataclass(frozen=True)
class Block:
    """Several columns over the same samples: values[i] belongs to names[i]."""

    names: list[str]
    values: Floats
    groups: Ints


def is_repeated(codes: NDArray[np.uint16], num_names: int, num_rows: int) -> bool:
    """Every sample has every name, in one order: the usual case, which needs no sorting."""
    if len(codes) != num_names * num_rows or len(set(codes[:num_names].tolist())) != num_names:
        return False
    return bool((codes.reshape(num_rows, num_names) == codes[:num_names]).all())


def coded(keys: pl.Series) -> tuple[list[str], NDArray[np.uint16]]:
    """Sorted distinct names and, per value, the place of its name. 16 bits: NumPy sorts those by radix, in one pass."""
    names = keys.unique().sort()
    codes = keys.cast(pl.Enum(names)).to_physical().cast(pl.UInt16).to_numpy()
    return names.to_list(), codes


def column_of(series: pl.Series, groups: Ints) -> Column:
    if series.null_count():
        present = series.is_not_null().to_numpy()
        return finite_column(series.drop_nulls().cast(pl.Float64).to_numpy(), groups[present])
    return finite_column(series.cast(pl.Float64).to_numpy(), groups)


def finite_column(values: Floats, groups: Ints) -> Column:
    finite = np.isfinite(values)
    if finite.all():
        return Column(values, groups)
    return Column(values[finite], groups[finite], int(len(values) - finite.sum()))


assert set(DTYPES) <= set(SAMPLES.names)
