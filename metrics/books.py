"""The samples of an attempt as they end: each in one bin, each counted in one step, read back when a step is made."""

from collections import Counter, OrderedDict

import numpy as np
import polars as pl
import pyarrow as pa

from metrics.ids import Ids
from metrics.schema import NARROW, SAMPLES, Outcome, conform
from metrics.segments import DamagedSegment, Segment, Table, read_manifest, read_segment
from metrics.store import Store

CACHED_ROWS = 1_000_000
"""Samples whose narrow columns are kept in memory; older ones are read from the store when they are needed."""


class Books:
    """What an attempt knows of its samples. `notes` collects what went wrong, by the name of its check."""

    def __init__(self, store: Store, attempt: int, lag: int, last_step: int, notes: dict[str, str]) -> None:
        self.store, self.attempt, self.lag, self.last_step, self.notes = store, attempt, lag, last_step, notes
        self.bins: dict[int, Counter[str]] = {}
        self.ids = Ids()
        self.pending: list[Segment] = []
        self.cache: OrderedDict[str, pl.DataFrame] = OrderedDict()
        for segment in read_manifest(self.table.folder).segments:
            self.remember(segment)

    @property
    def table(self) -> Table:
        return self.store.samples

    def add(self, source: str, seq: int, rows: pa.Table) -> None:
        """Store the rows of a message; the same message again is ignored."""
        if self.table.has(source, seq):
            return
        rows = conform(rows, SAMPLES)
        if Outcome.EVAL in rows["outcome"].unique().to_pylist():
            raise ValueError("log_samples: rows with outcome 'eval' belong to log_eval")
        rows = self.in_open_step(self.without_second_bins(rows))
        self.remember(self.store.add_samples(rows, attempt=self.attempt, source=source, seq=seq))

    def remember(self, segment: Segment) -> None:
        attempt = str(self.attempt)
        for step, counts in segment.meta["bins"].get(attempt, {}).items():
            self.bins.setdefault(int(step), Counter()).update(counts)
        self.ids.merge(np.array(segment.meta["ids"].get(attempt, []), dtype=np.int64).reshape(-1, 2))
        if segment.attempts[0] <= self.attempt <= segment.attempts[1] and segment.num_rows:
            self.pending.append(segment)
        self.forget_old()

    def close_step(self, step: int) -> None:
        self.last_step = step
        self.forget_old()

    def forget_old(self) -> None:
        """Keep what a coming step can still need: its own rows, and those that overlap the last windows."""
        self.pending = [segment for segment in self.pending if segment.steps[1] > self.last_step - self.lag]
        for file in self.cache.keys() - {segment.file for segment in self.pending}:
            del self.cache[file]
        closed = [step for step in self.bins if step <= self.last_step]
        if len(closed) > 1:
            total: Counter[str] = sum((self.bins.pop(step) for step in closed), Counter())
            self.bins[self.last_step] = total

    def without_second_bins(self, rows: pa.Table) -> pa.Table:
        """A sample that already ended in a bin is refused: it would be counted twice. The refusal is shown."""
        ids = rows["sample_id"].to_numpy()
        wrong = self.ids.known(ids)
        repeated = np.ones(len(ids), dtype=bool)
        repeated[np.unique(ids, return_index=True)[1]] = False
        wrong |= repeated
        if not wrong.any():
            return rows
        place = int(np.flatnonzero(wrong)[0])
        self.notes["one_bin"] = (
            f"{int(wrong.sum())} rows were refused because their sample is already in a bin; the first is sample "
            f"{ids[place]}, sent as {rows['outcome'][place].as_py()!r} of step {rows['step'][place].as_py()}"
        )
        return rows.filter(pa.array(~wrong))

    def in_open_step(self, rows: pa.Table) -> pa.Table:
        """Rows of a step that is already logged are counted in the next one: a logged number never changes."""
        steps = rows["step"].to_numpy()
        late = steps <= self.last_step
        if not late.any():
            return rows
        trained = int((late & (rows["outcome"].to_numpy() == Outcome.TRAINED)).sum())
        self.notes["late_rows"] = (
            f"{int(late.sum())} rows of step {int(steps[late].min())} ({trained} of them trained) "
            "came after that step was "
            f"logged; they are counted in step {self.last_step + 1}"
        )
        moved = pa.array(np.where(late, self.last_step + 1, steps), pa.int64())
        return rows.set_column(rows.schema.get_field_index("step"), SAMPLES.field("step"), moved)

    def ended_until(self, step: int) -> Counter[str]:
        """Samples in each bin, over all steps up to this one."""
        return sum((counts for known, counts in self.bins.items() if known <= step), Counter())

    def after_the_last_step(self) -> Counter[str]:
        return sum((counts for known, counts in self.bins.items() if known > self.last_step), Counter())

    def samples_of(self, first_step: int, last_step: int) -> pl.DataFrame:
        """The narrow columns of the samples of these steps, as they are stored."""
        frames = [self.narrow(segment) for segment in self.pending if segment.touches(first_step, last_step)]
        if not frames:
            return pl.DataFrame(schema={"step": pl.Int64, "outcome": pl.String})
        together = pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]
        return together.filter(pl.col("step").is_between(first_step, last_step), pl.col("attempt") == self.attempt)

    def narrow(self, segment: Segment) -> pl.DataFrame:
        if segment.file not in self.cache:
            self.cache[segment.file] = self.read_narrow(segment)
            while len(self.cache) > 1 and sum(len(frame) for frame in self.cache.values()) > CACHED_ROWS:
                self.cache.popitem(last=False)
        return self.cache[segment.file]

    def read_narrow(self, segment: Segment) -> pl.DataFrame:
        columns = [*NARROW, "attempt"]
        try:
            if (self.table.folder / segment.file).exists():
                return read_segment(self.table.folder, segment, columns)
            return self.read_merged(segment, columns)
        except (DamagedSegment, FileNotFoundError) as error:
            self.notes["store"] = f"{error}; its rows are left out"
        return pl.DataFrame(schema={"step": pl.Int64, "attempt": pl.Int32})

    def read_merged(self, segment: Segment, columns: list[str]) -> pl.DataFrame:
        """The rows of a segment that was merged into a bigger one since."""
        for other in read_manifest(self.table.folder).segments:
            if other.first_row <= segment.first_row and other.last_row >= segment.last_row:
                frame = read_segment(self.table.folder, other, [*columns, "row"])
                return frame.filter(pl.col("row").is_between(segment.first_row, segment.last_row)).drop("row")
        raise FileNotFoundError(f"samples/{segment.file}: the file is missing")
