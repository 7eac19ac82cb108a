"""What a process did when, on the run's clock: the timeline's raw data."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from app.clock import Clock
from metrics.schema import spans_table


class Spans:
    """Recorder of one lane. `take` hands over what has been recorded and starts anew."""

    def __init__(self, lane: str, synchronize: Any = None) -> None:
        self.lane = lane
        self.synchronize = synchronize  # on a GPU: waits for the device, so that a span covers its work
        self.clock = Clock()
        self.rows: list[dict[str, Any]] = []

    @contextmanager
    def measure(self, kind: str, microbatch: int | None = None, detail: str | None = None) -> Iterator[None]:
        start = self.now()
        try:
            yield
        finally:
            self.add(kind, start, self.now(), microbatch=microbatch, detail=detail)

    def add(
        self,
        kind: str,
        start_s: float,
        end_s: float,
        *,
        lane: str | None = None,
        microbatch: int | None = None,
        detail: str | None = None,
    ) -> None:
        self.rows.append(
            {
                "lane": lane or self.lane,
                "kind": kind,
                "start_s": start_s,
                "end_s": end_s,
                "microbatch": microbatch,
                "detail": detail,
            }
        )

    def take(self, step: int) -> pa.Table:
        """The spans recorded since the last call, as rows of `metrics.schema.SPANS`."""
        rows, self.rows = self.rows, []
        return spans_table({"step": step, **row} for row in rows)

    def now(self) -> float:
        """Seconds on the run's clock, once the device has done what it was told."""
        if self.synchronize is not None:
            self.synchronize()
        return self.clock.now()
