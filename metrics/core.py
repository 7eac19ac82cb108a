"""The bookkeeper of a run: takes messages of rows, stores them, and makes each step's numbers from what it stored.

Plain Python, no Ray: metrics/actor.py wraps it. Whatever it needs after a restart it reads back from the store, so a
message that was acknowledged is never lost, and one that is sent again is never counted twice.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from metrics import keys
from metrics.books import Books
from metrics.checks import run_checks
from metrics.evals import eval_metrics
from metrics.journal import read_lines
from metrics.ledger import balance
from metrics.population import arranged
from metrics.schema import SAMPLES, SPANS, Outcome, conform
from metrics.segments import DamagedSegment, read_manifest, read_segment
from metrics.sinks import Sink, close_all
from metrics.step import StepNumbers, step_numbers
from metrics.store import CHECKS, TABLES, Store
from metrics.timeline import slot_shares, spans_of, steps_until_known, window
from metrics.values import asked_pass_k, check_environments, eval_values, maxima, plain, step_values
from metrics.verdict import Facts

Points = list[tuple[int, str, float]]
"""(step, key, value)."""


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
        self.attempt, self.resume_step, self.num_slots = attempt, resume_step, num_slots
        self.config, self.environments = config, environments
        self.sinks, self.clock = list(sinks), clock
        self.lag = steps_until_known(config)
        self.notes: dict[str, str] = {}
        self.closed_as: str | None = None
        with ExitStack() as undo:
            undo.callback(self.store.close)  # a refused attempt must not keep the run locked
            info = {"config": plain(config), "environments": plain(environments), "num_slots": num_slots}
            self.store.begin(attempt, resume_step, info)
            self.recover()
            undo.pop_all()

    def recover(self) -> None:
        """What a writer that was restarted has to know, from the store: it is the same as if it had never ended."""
        series = self.read_attempt("series")
        logged = series.filter(pl.col("key") == "ledger/started")["step"]  # an eval alone does not make a step
        self.last_step = int(logged.max()) if len(logged) else self.resume_step  # type: ignore[arg-type]
        entropies = series.filter(pl.col("key") == "entropy").sort("step")["value"]
        self.first_entropy: float | None = entropies[0] if len(entropies) else None
        self.books = Books(self.store, self.attempt, self.lag, self.last_step, self.notes)
        self.windows = self.recovered_windows()
        self.failing = {item["check"] for item in self.stored_checks(self.last_step) if not item["ok"]}

    @property
    def resumed_at(self) -> int | None:
        """The step that this attempt goes on from, as long as it has not logged one itself; None in the first one."""
        return self.resume_step if self.attempt > 1 and self.last_step == self.resume_step else None

    def recovered_windows(self) -> dict[int, tuple[float, float]]:
        spans = self.read_attempt("spans").sort("step")
        recent = spans.filter(pl.col("step").is_between(self.last_step - self.lag - 1, self.last_step))
        windows: dict[int, tuple[float, float]] = {}
        previous: float | None = None
        for (step,), part in recent.group_by("step", maintain_order=True):
            bounds = window(spans_of(part), previous)
            if bounds is not None:
                windows[int(step)] = bounds
            previous = None if bounds is None else bounds[1]
        return {step: bounds for step, bounds in windows.items() if step >= self.last_step - self.lag}

    def read_attempt(self, table: str) -> pl.DataFrame:
        """Every readable row of this attempt."""
        folder = self.store.root / table
        empty = pl.from_arrow(TABLES[table].empty_table())
        assert isinstance(empty, pl.DataFrame)
        frames = [empty.with_columns(attempt=pl.lit(0, pl.Int32), row=pl.lit(0, pl.Int64)).clear()]
        for segment in read_manifest(folder).segments:
            if segment.attempts[0] <= self.attempt <= segment.attempts[1] and segment.num_rows:
                try:
                    frames.append(read_segment(folder, segment).filter(pl.col("attempt") == self.attempt))
                except (DamagedSegment, FileNotFoundError) as error:
                    self.notes["store"] = f"{error}; its rows are left out"
        return pl.concat(frames, how="diagonal")  # a segment of an older version lacks the newer columns

    def has_samples(self, source: str, seq: int) -> bool:
        return self.store.samples.has(source, seq)

    def check_open(self) -> None:
        if self.closed_as is not None:
            raise RuntimeError(f"the run's metrics are closed ({self.closed_as}); a resume needs a new attempt")

    def log_samples(self, source: str, seq: int, rows: pa.Table) -> None:
        """Store rows of samples that ended. They are durable when this returns."""
        self.check_open()
        self.books.add(source, seq, rows)

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
        self.check_open()
        self.check_step(step)
        given = step_values(values)
        spans = conform(spans, SPANS)
        if not self.store.spans.has(source, seq):
            self.store.spans.append(spans, attempt=self.attempt, source=source, seq=seq, meta={})
        if missing is not None:
            self.notes["samples_missing"] = (
                f"the rows of message {missing[0]!r} {missing[1]} did not come in time; the step's "
                "numbers are without them"
            )
        return self.store_step(source, seq, step, given, spans, started)

    def store_step(
        self, source: str, seq: int, step: int, given: dict[str, float], spans: pa.Table, started: int
    ) -> dict[str, Any]:
        rows = arranged(self.books.samples_of(self.last_step + 1, step))
        numbers = self.numbers_of(step, rows.filter(pl.col("step") == step), spans)
        row = self.whole_row(step, numbers, given, started)
        late = self.late_shares(step)
        records = self.judge(step, row, rows)
        self.store.add_values(
            late + [(step, key, value) for key, value in row.items()],
            attempt=self.attempt,
            source=source,
            seq=seq,
            time_s=self.clock(),
            sample_metrics=numbers.sample_metrics,
        )
        self.step_stored(step, row)
        self.send(step, row, late)
        return row | {"checks": records}

    def numbers_of(self, step: int, rows: pl.DataFrame, spans: pa.Table) -> StepNumbers:
        frame = pl.from_arrow(spans)
        assert isinstance(frame, pl.DataFrame)
        previous = self.windows[self.last_step][1] if self.last_step in self.windows else None
        bounds = window(spans_of(frame), previous)
        if bounds is not None:
            self.windows[step] = bounds
        # With samples that run ahead of the trainer, the slots' shares can only be known some steps later.
        slots = None if self.lag else self.num_slots
        numbers = step_numbers(rows, frame, num_slots=slots, previous_end_s=previous)
        if numbers.left_out:
            self.notes["sample_metrics"] = "; ".join(numbers.left_out)
        return numbers

    def whole_row(self, step: int, numbers: StepNumbers, given: dict[str, float], started: int) -> dict[str, float]:
        row = numbers.values | given | balance(started, self.books.ended_until(step))
        seconds = row.get("timing_step_total", 0.0)
        if "tokens/trained" in row and seconds > 0:
            row["throughput/trained_tokens_per_s"] = row["tokens/trained"] / seconds
        return row

    def late_shares(self, step: int) -> Points:
        """Shares of the slots' time in the window of `lag` steps ago: by now every sample that overlaps it has
        ended."""
        target = step - self.lag
        if not self.lag or target not in self.windows:
            return []
        return self.shares(target, step)

    def shares(self, target: int, last_step: int) -> Points:
        rows = arranged(self.books.samples_of(target, last_step))
        return [(target, key, value) for key, value in slot_shares(rows, self.windows[target], self.num_slots).items()]

    def judge(self, step: int, row: dict[str, float], rows: pl.DataFrame) -> list[dict[str, Any]]:
        """Run the self-checks, store failures and the first success after one, and return all of them."""
        results = run_checks(Facts(step, row, rows, self.config, self.first_entropy, self.take_notes()))
        records = [result.record() | {"attempt": self.attempt} for result in results]
        self.store.add_checks([record for record in records if not record["ok"] or record["check"] in self.failing])
        self.failing = {record["check"] for record in records if not record["ok"]}
        return records

    def step_stored(self, step: int, row: Mapping[str, float]) -> None:
        self.last_step = step
        self.books.close_step(step)
        self.windows = {known: bounds for known, bounds in self.windows.items() if known > step - max(self.lag, 1)}
        if self.first_entropy is None:
            self.first_entropy = row.get("entropy")

    def send(self, step: int, row: dict[str, float], late: Points) -> None:
        for sink in self.sinks:
            sink.log(step, row)
            if late:
                sink.log(late[0][0], {key: value for _, key, value in late})

    def check_step(self, step: int) -> None:
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
            self.notes["steps_skipped"] = f"step {step} follows step {self.last_step}; those between were never logged"

    def take_notes(self) -> dict[str, str]:
        notes = dict(self.notes)
        self.notes.clear()
        for sink in self.sinks:
            if trouble := sink.trouble():
                notes[sink.name] = trouble
        return notes

    def stored_checks(self, step: int) -> list[dict[str, Any]]:
        lines = read_lines(self.store.root / CHECKS).items
        return [item for item in lines if item["attempt"] == self.attempt and item["step"] == step]

    def stored_row(self, step: int) -> dict[str, Any]:
        """What log_step returned for a step, from the store (of the checks, those that were worth a line)."""
        series = self.read_attempt("series").filter(pl.col("step") == step).sort("row")
        return dict(series.select("key", "value").rows()) | {"checks": self.stored_checks(step)}

    def log_eval(self, source: str, seq: int, step: int, values: Mapping[str, Any], rows: pa.Table) -> dict[str, float]:
        """Store an evaluation. Its eval/* numbers are made from the rows; other eval/* keys of `values` are kept."""
        if self.store.series.has(source, seq):
            return {}
        self.check_open()
        rows = conform(rows, SAMPLES)
        strange = set(rows["outcome"].unique().to_pylist()) - {str(Outcome.EVAL)}
        if strange:
            raise ValueError(f"log_eval: rows must have outcome 'eval', got {min(strange)!r}")
        found = eval_values(values)
        if not self.store.evals.has(source, seq):
            self.store.evals.append(rows, attempt=self.attempt, source=source, seq=seq, meta={})
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        found |= eval_metrics(frame, maxima(self.environments), asked_pass_k(self.environments))
        self.add_points([(step, key, value) for key, value in found.items()], source, seq)
        for sink in self.sinks:
            sink.log(step, found)
        return found

    def add_points(self, points: Points, source: str, seq: int) -> None:
        self.store.add_values(points, attempt=self.attempt, source=source, seq=seq, time_s=self.clock())

    def close(self, state: str) -> None:
        """Finish the attempt: the last windows' shares, what is left to say, and the sinks. Once."""
        if self.closed_as is not None:
            return
        self.closed_as = state
        if self.lag and not self.store.series.has("close", self.attempt):
            last = max(self.books.bins, default=self.last_step)
            self.add_points(
                [p for step in sorted(self.windows) for p in self.shares(step, last)], "close", self.attempt
            )
        close_all(self.sinks, state)
        troubles = [self.closing_line(name, text, ok=False) for name, text in self.take_notes().items()]
        if rest := self.books.after_the_last_step():
            said = ", ".join(f"{count} {name}" for name, count in sorted(rest.items()))
            troubles.append(self.closing_line("after_the_last_step", f"samples that ended after it: {said}", ok=True))
        self.store.add_checks(troubles)
        self.store.close()

    def closing_line(self, name: str, text: str, *, ok: bool) -> dict[str, Any]:
        blank = {"value": None, "threshold": None, "hint": "", "level": "ok" if ok else "fail"}
        return {"check": name, "ok": ok, "step": self.last_step, "message": text, "attempt": self.attempt} | blank
