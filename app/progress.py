"""What a person reads in the terminal while a run trains and when it has ended: text of a run's metrics."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger("telescope")
LOG_EVERY_S = 10.0
LAST_LINE_S = 1.0  # a stop leaves few seconds to take engines down
SPEED_OVER_STEPS = 5  # one step is too noisy to tell the time left from
LEDGER = "ledger/"
# Of all scored samples: the groups that are left to train look worse and worse as the policy gets better.
REWARD = "generated/reward_mean"
STEP_TIME = "timing_step_total"
Row = Mapping[str, float | None]


@dataclass
class Progress:
    """The steps seen so far, fed with what `metrics.read.series` gives."""

    steps: int
    rows: dict[int, dict[str, float | None]] = field(default_factory=dict)
    last_step: int = 0

    def feed(self, series: Mapping[str, Any]) -> bool:
        """Take in new steps; whether there were any."""
        before = self.last_step
        for at, step in enumerate(series["steps"]):
            row = {key: column[at] for key, column in series["columns"].items()}
            self.rows.setdefault(step, {}).update(row)
        for key, points in series["late"].items():
            for step, value in points:
                self.rows.setdefault(step, {})[key] = value
        came = {*series["steps"], *(step for points in series["late"].values() for step, _ in points)}
        self.last_step = max([before, *filter(self._is_done, came)])
        return self.last_step > before

    def _is_done(self, step: int) -> bool:
        """Whether the step's own numbers are there. An eval of it can be ahead of them."""
        return self.rows.get(step, {}).get(STEP_TIME) is not None

    def line(self) -> str:
        """`step 12/60 · reward 0.43 · 4,120 tokens/s · 3 min 20 s left`"""
        newest = range(self.last_step - SPEED_OVER_STEPS + 1, self.last_step + 1)
        recent = [self.rows[step] for step in newest if self._is_done(step)]
        parts = [f"step {self.last_step}/{self.steps}"]
        if not recent:
            return parts[0]
        if (reward := recent[-1].get(REWARD)) is not None:
            parts.append(f"reward {reward:.3f}")
        seconds = total(recent, STEP_TIME)
        if seconds > 0:
            parts.append(f"{total(recent, 'tokens/generated') / seconds:,.0f} tokens/s")
            parts.append(f"{duration(seconds / len(recent) * (self.steps - self.last_step))} left")
        return " · ".join(parts)

    def summary(self, wall_s: float, first_step_s: float | None) -> list[tuple[str, str]]:
        """Names and values of the closing table."""
        rows = [self.rows[step] for step in sorted(self.rows)]
        started = f" ({duration(first_step_s)} to the first step)" if first_step_s is not None else ""
        table = [("steps", f"{self.last_step} of {self.steps}"), ("wall time", duration(wall_s) + started)]
        table[:0] = held_out(rows) or training_reward(rows)
        if tokens := total(rows, "tokens/generated"):
            table.append(("tokens generated", f"{tokens:,.0f}"))
        if counts := ledger(rows):
            table.append(("samples", counts))
        return table


@contextmanager
def logged(run_dir: Path, steps: int) -> Iterator[None]:
    """Meanwhile the run's progress goes to the log: a line now and then, and one at the end."""
    over = threading.Event()

    def follow() -> None:
        from metrics import read  # a moment, which a start does not wait for

        progress = Progress(steps)
        while True:
            ended = over.wait(LOG_EVERY_S)
            try:
                if progress.feed(read.series(run_dir, since=progress.last_step or None)):
                    logger.info(progress.line())
            except OSError as error:
                logger.warning("progress cannot be read: %s", error)
            if ended:
                return

    follower = threading.Thread(target=follow, daemon=True, name="progress")
    follower.start()
    try:
        yield
    finally:
        over.set()
        follower.join(LAST_LINE_S)


def held_out(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """First and last held-out reward of each environment."""
    keys = sorted({key for row in rows for key in row if key.startswith("eval/") and key.endswith("/reward_mean")})
    return [(f"held-out reward, {key.split('/')[1]}", change(rows, key)) for key in keys]


def training_reward(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [("reward while training", change(rows, REWARD))] if values(rows, REWARD) else []


def change(rows: Sequence[Row], key: str) -> str:
    found = values(rows, key)
    return f"{found[0]:.3f} → {found[-1]:.3f}" if len(found) > 1 else f"{found[0]:.3f}"


def ledger(rows: Sequence[Row]) -> str:
    """Every sample that was started, by what became of it: the counts of the last step."""
    last = next((row for row in reversed(rows) if any(key.startswith(LEDGER) for key in row)), {})
    counts = {key.removeprefix(LEDGER): value for key, value in last.items() if key.startswith(LEDGER)}
    largest_first = sorted(((value, name) for name, value in counts.items() if value), reverse=True)
    return ", ".join(f"{name} {value:,.0f}" for value, name in largest_first)


def values(rows: Sequence[Row], key: str) -> list[float]:
    return [value for row in rows if (value := row.get(key)) is not None]


def total(rows: Sequence[Row], key: str) -> float:
    return sum(values(rows, key))


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
