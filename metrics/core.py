"""The bookkeeper of a run: takes messages of rows, stores them, and makes each step's numbers from what it stored.

Plain Python, no Ray: metrics/actor.py wraps it. Whatever it needs after a restart it reads back from the store, so a
message that was acknowledged is never lost, and one that is sent again is never counted twice.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from metrics import keys
from metrics.checks import Facts, run_checks
from metrics.evals import eval_metrics
from metrics.ids import Ids
from metrics.journal import read_lines
from metrics.ledger import balance
from metrics.population import Population, arranged
from metrics.registry import find, refuse_shadow
from metrics.schema import NARROW, SAMPLES, SPANS, Outcome, conform
from metrics.segments import DamagedSegment, Segment, read_manifest, read_segment
from metrics.sinks import Sink
from metrics.step import own_metrics, step_metrics
from metrics.store import CHECKS, Store
from metrics.timeline import slot_shares, spans_of, window

CACHED_ROWS = 1_000_000
RESERVED = ("checks",)
"""Names that the returned row of a step uses for itself."""


class MetricsCore:
    """One attempt of one run. Messages are (source, seq): the same pair again is acknowledged and ignored."""

    def __init__(
        self,
        run_dir: Path,
        *,
        attempt: int,
        resume_step: int,
        config: Mapping[str, Any],
        environments: Sequence[Mapping[str, Any]],
        num_slots: int,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.time,
        lock_wait_s: float = 0.0,
    ) -> None:
        check_environments(environments)
        self.store = Store(Path(run_dir), wait_s=lock_wait_s)
        info = {"config": plain(config), "environments": plain(environments), "num_slots": num_slots}
        self.store.begin(attempt, resume_step, info)
        self.attempt, self.resume_step, self.num_slots = attempt, resume_step, num_slots
        self.config, self.environments = config, environments
        self.sinks, self.clock = sinks, clock
        self.lag = int(config.get("max_async_rollout") or 0)
        self.cache: OrderedDict[str, pl.DataFrame] = OrderedDict()
        self.notes: dict[str, str] = {}
        self.recover()

    def recover(self) -> None:
        """What is known from the store: the last step, the ledger, the ids, the windows of the last steps."""
        self.bins: dict[int, Counter[str]] = {}
        self.ids = Ids()
        self.pending: list[Segment] = []
        self.last_step = self.resume_step
        self.first_entropy: float | None = None
        self.failing: set[str] = set()
        series = self.read_attempt("series")
        if len(series):
            self.last_step = max(self.resume_step, logged_steps(series).max() or self.resume_step)  # type: ignore[type-var]
            entropies = series.filter(pl.col("key") == "entropy").sort("step")["value"]
            self.first_entropy = entropies[0] if len(entropies) else None
        for segment in read_manifest(self.store.samples.folder).segments:
            self.remember_samples(segment)
        self.windows = self.recovered_windows()
        self.failing = {item["check"] for item in self.stored_checks() if not item["ok"]} - {
            item["check"] for item in self.stored_checks() if item["ok"]
        }

    def recovered_windows(self) -> dict[int, tuple[float, float]]:
        spans = self.read_attempt("spans").sort("step")
        windows: dict[int, tuple[float, float]] = {}
        previous: float | None = None
        for (step,), part in spans.filter(pl.col("step") > self.last_step - self.lag - 2).group_by(
            "step", maintain_order=True
        ):
            bounds = window(spans_of(part), previous)
            if bounds is not None and step <= self.last_step:  # type: ignore[operator]
                windows[int(step)] = bounds  # type: ignore[call-overload]
                previous = bounds[1]
        return windows

    def read_attempt(self, table: str) -> pl.DataFrame:
        folder = self.store.root / table
        frames = []
        for segment in read_manifest(folder).segments:
            if segment.attempts[0] <= self.attempt <= segment.attempts[1] and segment.num_rows:
                try:
                    frames.append(read_segment(folder, segment).filter(pl.col("attempt") == self.attempt))
                except (DamagedSegment, FileNotFoundError) as error:
                    self.notes["store"] = f"{error}; its rows are left out"
        if frames:
            return pl.concat(frames)
        schema = {"series": {"step": pl.Int64, "key": pl.String, "value": pl.Float64, "row": pl.Int64}}
        return pl.DataFrame(schema=schema.get(table, {"step": pl.Int64}))

    # ---------------------------------------------------------------- samples

    def has_samples(self, source: str, seq: int) -> bool:
        return self.store.samples.has(source, seq)

    def log_samples(self, source: str, seq: int, rows: pa.Table) -> None:
        """Store rows of samples that ended. They are durable when this returns."""
        if self.has_samples(source, seq):
            return
        rows = conform(rows, SAMPLES)
        if Outcome.EVAL in rows["outcome"].unique().to_pylist():
            raise ValueError("log_samples: rows with outcome 'eval' belong to log_eval")
        rows = self.without_second_bins(rows)
        rows = self.in_open_step(rows)
        segment = self.store.add_samples(rows, attempt=self.attempt, source=source, seq=seq)
        self.remember_samples(segment)

    def remember_samples(self, segment: Segment) -> None:
        for step, counts in segment.meta["bins"].get(str(self.attempt), {}).items():
            self.bins.setdefault(int(step), Counter()).update(counts)
        self.ids.merge(np.array(segment.meta["ids"].get(str(self.attempt), []), dtype=np.int64).reshape(-1, 2))
        if segment.attempts[0] <= self.attempt <= segment.attempts[1] and segment.num_rows:
            self.pending.append(segment)
            self.forget_old()

    def forget_old(self) -> None:
        """Keep what a coming step can still need: its own rows, and those that overlap the last windows."""
        oldest = self.last_step - self.lag
        self.pending = [segment for segment in self.pending if segment.steps[1] > oldest]
        closed = [step for step in self.bins if step <= self.last_step]
        if len(closed) > 1:
            total: Counter[str] = sum((self.bins.pop(step) for step in closed), Counter())
            self.bins[self.last_step] = total

    def without_second_bins(self, rows: pa.Table) -> pa.Table:
        """A sample that already ended in a bin is refused: it would be counted twice. The refusal is shown."""
        ids = rows["sample_id"].to_numpy()
        first = np.zeros(len(ids), dtype=bool)
        first[np.unique(ids, return_index=True)[1]] = True
        wrong = self.ids.known(ids) | ~first
        if not wrong.any():
            return rows
        place = int(np.flatnonzero(wrong)[0])
        self.notes["one_bin"] = (
            f"{int(wrong.sum())} rows were refused because their sample is already in a bin; the first is sample {ids[place]}, "
            f"sent as {rows['outcome'][place].as_py()!r} of step {rows['step'][place].as_py()}"
        )
        return rows.filter(pa.array(~wrong))

    def in_open_step(self, rows: pa.Table) -> pa.Table:
        """Rows of a step that is already logged are counted in the next one: a logged number never changes."""
        steps = rows["step"].to_numpy()
        late = steps <= self.last_step
        if not late.any():
            return rows
        trained = int((late & (rows["outcome"].to_numpy() == Outcome.TRAINED)).sum())
        self.notes["late_rows" if trained else "late_discards"] = (
            f"{int(late.sum())} rows of step {int(steps[late].min())} ({trained} of them trained) came after that step was "
            f"logged; they are counted in step {self.last_step + 1}"
        )
        moved = pa.array(np.where(late, self.last_step + 1, steps), pa.int64())
        return rows.set_column(rows.schema.get_field_index("step"), SAMPLES.field("step"), moved)

    def samples_of(self, first_step: int, last_step: int) -> pl.DataFrame:
        """The narrow columns of the samples of these steps, read back from the store (or from memory, when recent)."""
        frames = [self.narrow(segment) for segment in self.pending if segment.touches(first_step, last_step)]
        frames = [frame for frame in frames if frame is not None]
        if not frames:
            return pl.DataFrame(schema={"step": pl.Int64, "outcome": pl.String})
        together = pl.concat(frames) if len(frames) > 1 else frames[0]
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
            return read_segment(self.store.samples.folder, segment, columns)
        except FileNotFoundError:  # merged meanwhile: the rows are in the segment that replaced it
            for other in read_manifest(self.store.samples.folder).segments:
                if other.first_row <= segment.first_row and other.last_row >= segment.last_row:
                    frame = read_segment(self.store.samples.folder, other, [*columns, "row"])
                    return frame.filter(pl.col("row").is_between(segment.first_row, segment.last_row)).drop("row")
        except DamagedSegment as error:
            self.notes["store"] = f"{error}; its rows are left out"
        return pl.DataFrame(schema={"step": pl.Int64, "attempt": pl.Int32})

    # ---------------------------------------------------------------- steps

    def log_step(
        self,
        source: str,
        seq: int,
        step: int,
        values: Mapping[str, Any],
        spans: pa.Table,
        started: int,
        missing: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Store a step: the trainer's values, and everything that follows from its rows. Returns the whole row.

        `missing` is a message of samples that should have come first and did not: the step says so.
        """
        if self.store.series.has(source, seq):
            return self.stored_row(step)
        given = self.checked_values(step, values)
        spans = conform(spans, SPANS)
        if not self.store.spans.has(source, seq):
            self.store.spans.append(spans, attempt=self.attempt, source=source, seq=seq, meta={})
        if missing is not None:
            self.notes["samples_missing"] = (
                f"the rows of message {missing[0]!r} {missing[1]} did not come in time; the step's numbers are without them"
            )
        row, late, names, rows = self.row_of(step, given, spans, started)
        results = run_checks(Facts(step, row, rows, self.config, self.first_entropy, self.take_notes()))
        records = [result.record() for result in results]
        self.store_checks(records)
        self.store.add_values(
            late + [(step, key, value) for key, value in row.items()],
            attempt=self.attempt, source=source, seq=seq, time_s=self.clock(), sample_metrics=names,
        )  # fmt: skip
        self.last_step = step
        self.first_entropy = row.get("entropy") if self.first_entropy is None else self.first_entropy
        self.forget_old()
        self.send(step, row, late)
        return row | {"checks": records}

    def row_of(
        self, step: int, given: dict[str, float], spans: pa.Table, started: int
    ) -> tuple[dict[str, float], list[tuple[int, str, float]], dict[str, list[str]], pl.DataFrame]:
        """The step's values, late values of earlier steps, the names of its sample metrics, and its arranged rows."""
        samples = self.samples_of(self.last_step + 1, step)
        frame = pl.from_arrow(spans)
        assert isinstance(frame, pl.DataFrame)
        previous = self.windows.get(self.last_step, (0.0, None))[1]
        row = step_metrics(
            samples.filter(pl.col("step") == step),
            frame,
            num_slots=None if self.lag else self.num_slots,
            previous_end_s=previous,
        )
        bounds = window(spans_of(frame), previous)
        if bounds is not None:
            self.windows[step] = bounds
        row |= given
        if bounds is not None and "tokens/trained" in row and bounds[1] > bounds[0]:
            row["throughput/trained_tokens_per_s"] = row["tokens/trained"] / (bounds[1] - bounds[0])
        row |= balance(started, self.ended_until(step))
        rows = arranged(samples)
        _, names, left_out = own_metrics(Population(rows).of(Outcome.TRAINED))
        if left_out:
            self.notes["sample_metrics"] = "; ".join(left_out)
        return row, self.late_shares(step), names, rows

    def late_shares(self, step: int) -> list[tuple[int, str, float]]:
        """Shares of the slots' time in the window of `lag` steps ago: by now every sample that overlaps it has ended."""
        target = step - self.lag
        if not self.lag or target not in self.windows:
            return []
        shares = slot_shares(self.samples_of(target, step), self.windows[target], self.num_slots)
        self.windows = {known: bounds for known, bounds in self.windows.items() if known > target}
        return [(target, key, value) for key, value in shares.items()]

    def ended_until(self, step: int) -> Counter[str]:
        return sum((counts for known, counts in self.bins.items() if known <= step), Counter())

    def checked_values(self, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(f"step must be an integer, got {keys.described(step)}")
        if step <= self.last_step:
            raise ValueError(
                f"step {step} comes after step {self.last_step}, which is logged; a step is logged once, in order"
            )
        limit = self.config.get("steps")
        if limit is not None and step > limit:
            raise ValueError(f"step {step} is beyond the run, which has {limit} steps")
        if step > self.last_step + 1:
            self.notes["steps_skipped"] = (
                f"step {step} follows step {self.last_step}: the steps between were never logged"
            )
        return step_values(values)

    def take_notes(self) -> dict[str, str]:
        notes, self.notes = self.notes, {}
        for sink in self.sinks:
            if trouble := sink.trouble():
                notes[sink.name] = trouble
        return notes

    def store_checks(self, records: list[dict[str, Any]]) -> None:
        """Failures, and the first success after one: what is fine all along needs no line."""
        worth = [record for record in records if not record["ok"] or record["check"] in self.failing]
        self.store.add_checks([record | {"attempt": self.attempt} for record in worth])
        self.failing = {record["check"] for record in records if not record["ok"]}

    def stored_checks(self) -> list[dict[str, Any]]:
        lines = read_lines(self.store.root / CHECKS).items
        return [item for item in lines if item["attempt"] == self.attempt and item["step"] == self.last_step]

    def stored_row(self, step: int) -> dict[str, Any]:
        series = self.read_attempt("series").filter(pl.col("step") == step).sort("row")
        checks = [
            item
            for item in read_lines(self.store.root / CHECKS).items
            if item["step"] == step and item["attempt"] == self.attempt
        ]
        return dict(series.select("key", "value").rows()) | {"checks": checks}

    def send(self, step: int, row: dict[str, float], late: list[tuple[int, str, float]]) -> None:
        for sink in self.sinks:
            sink.log(step, row)
            for earlier in sorted({when for when, _, _ in late}):
                sink.log(earlier, {key: value for when, key, value in late if when == earlier})

    # ---------------------------------------------------------------- evals and the end

    def log_eval(self, source: str, seq: int, step: int, values: Mapping[str, Any], rows: pa.Table) -> dict[str, float]:
        """Store an evaluation. Its eval/* numbers are made from the rows; other eval/* keys of `values` are kept."""
        if self.store.series.has(source, seq):
            return {}
        rows = conform(rows, SAMPLES)
        strange = set(rows["outcome"].unique().to_pylist()) - {str(Outcome.EVAL)}
        if strange:
            raise ValueError(f"log_eval: rows must have outcome 'eval', got {min(strange)!r}")
        given = {keys.check(key): keys.number(key, value) for key, value in values.items()}
        wrong = [key for key in given if not key.startswith("eval/")]
        if wrong:
            raise ValueError(f"log_eval: key {wrong[0]!r} must start with 'eval/<name>/'")
        if not self.store.evals.has(source, seq):
            self.store.evals.append(rows, attempt=self.attempt, source=source, seq=seq, meta={})
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        found = {key: value for key, value in given.items() if value is not None}
        found |= eval_metrics(frame, maxima(self.environments)) if len(frame) else {}
        self.store.add_values(
            [(step, key, value) for key, value in found.items()],
            attempt=self.attempt,
            source=source,
            seq=seq,
            time_s=self.clock(),
        )
        for sink in self.sinks:
            sink.log(step, found)
        return found

    def close(self, state: str) -> None:
        """Finish the attempt: the last windows' shares, the books, and the sinks."""
        late = [share for step in sorted(self.windows) for share in self.final_shares(step)]
        if late and self.lag:
            self.store.add_values(late, attempt=self.attempt, source="close", seq=self.attempt, time_s=self.clock())
        leftovers = Counter(
            {
                name: count
                for step, counts in self.bins.items()
                if step > self.last_step
                for name, count in counts.items()
            }
        )
        if leftovers:
            said = ", ".join(f"{count} {name}" for name, count in sorted(leftovers.items()))
            self.notes["after_the_last_step"] = f"samples that ended after the last step: {said}"
        notes = self.take_notes()
        self.store.add_checks(
            [
                {"check": name, "ok": name == "after_the_last_step", "step": self.last_step, "value": None, "threshold": None, "message": text,
                 "hint": "", "level": "ok" if name == "after_the_last_step" else "fail", "attempt": self.attempt}
                for name, text in notes.items()
            ]
        )  # fmt: skip
        for sink in self.sinks:
            sink.close(state)
        self.store.close()

    def final_shares(self, step: int) -> list[tuple[int, str, float]]:
        last = max(self.bins, default=self.last_step)
        shares = slot_shares(self.samples_of(step, last), self.windows[step], self.num_slots)
        return [(step, key, value) for key, value in shares.items()]


def step_values(values: Mapping[str, Any]) -> dict[str, float]:
    """What a trainer backend returned, checked: its own built-in keys, and any other key that no definition owns."""
    found: dict[str, float] = {}
    for key, value in values.items():
        keys.check(key)
        number = keys.number(key, value)
        owner = find(key)
        if owner is not None and owner.source != "trainer":
            raise ValueError(refuse_shadow(key, "train_step()"))
        if key in RESERVED:
            raise ValueError(f"train_step() may not use the key {key!r}; rename it")
        if number is not None:
            found[key] = number
    return found


def logged_steps(series: pl.DataFrame) -> pl.Series:
    """Steps that log_step wrote: those with a ledger (an eval alone does not make a step)."""
    return series.filter(pl.col("key") == "ledger/started")["step"]


def maxima(environments: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Per environment and metric the declared maximum: what counts as solved."""
    found: dict[str, dict[str, float]] = {}
    for environment in environments:
        ranges = environment.get("metrics_ranges") or {}
        mine = {name: bounds["max"] for name, bounds in ranges.items() if bounds.get("max") is not None}
        if environment.get("reward_max") is not None:
            mine["reward"] = environment["reward_max"]
        found[environment["name"]] = mine
    return found


def check_environments(environments: Sequence[Mapping[str, Any]]) -> None:
    from metrics.ranges import check_range

    for environment in environments:
        name = keys.check(environment["name"])
        check_range(f"environment {name!r}: reward", environment.get("reward_min"), environment.get("reward_max"))
        for metric, bounds in (environment.get("metrics_ranges") or {}).items():
            check_range(f"environment {name!r}: metric {metric!r}", bounds.get("min"), bounds.get("max"))


def plain(value: Any) -> Any:
    """Configuration as JSON can hold it; what it cannot hold, as its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
