"""One clock for the times of all hosts: the monotonic clock of the host of the run's weight store.

Monotonic clocks of two hosts begin at their boots and drift apart by seconds a day. Each process asks the store for its
time, takes the answer that came back fastest, and adds the difference to its own clock; what it cannot know is half of
that answer's way. On the same host nothing is added.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.run_context import answer, answered

PINGS = 5
REFRESH_S = 30.0
"""Two clocks that drift apart by 50 millionths do so by 1.5 ms in this time."""
ANSWER_LIMIT_S = 60


class Ping(NamedTuple):
    """One question: which clock the other has, what it showed, and when we asked and had the answer."""

    clock: str
    shown_s: float
    asked_s: float
    answered_s: float

    @property
    def offset_s(self) -> float:
        return self.shown_s - (self.asked_s + self.answered_s) / 2

    @property
    def error_s(self) -> float:
        return (self.answered_s - self.asked_s) / 2


def own_clock() -> str:
    """Names the clock that this process reads: it is the same for all processes of a host that share its time."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/time")
    named = boot.read_text().strip() if boot.exists() else os.uname().nodename
    return f"{named}/{space.readlink() if space.is_symlink() else ''}"


def shown() -> tuple[str, float]:
    """What an actor answers that is asked for its clock."""
    return own_clock(), time.monotonic()


class Clock:
    """The run's clock as a process sees it. Without a reference (an actor with a method `clock`), the process's own."""

    def __init__(self, reference: Any = None) -> None:
        self.reference = reference
        self.offset_s = 0.0
        self.error_s = 0.0
        """Largest error of `now`, in seconds."""
        self.due_s = float("-inf") if reference is not None else float("inf")

    def now(self) -> float:
        """Seconds on the run's clock."""
        return time.monotonic() + self.offset_s

    def of(self, own_s: float | None) -> float | None:
        """A time of this host's monotonic clock on the run's."""
        return None if own_s is None else own_s + self.offset_s

    def refresh(self) -> None:
        """Compares the clocks again, when that is due."""
        if time.monotonic() >= self.due_s:
            self.take([self._ping() for _ in range(PINGS)])

    async def refresh_async(self) -> None:
        if time.monotonic() >= self.due_s:
            pings = []
            for _ in range(PINGS):
                asked_s = time.monotonic()
                clock, shown_s = await answered(self.reference.clock.remote(), ANSWER_LIMIT_S, "the weight store")
                pings.append(Ping(clock, shown_s, asked_s, time.monotonic()))
            self.take(pings)

    def take(self, pings: Sequence[Ping]) -> None:
        """Sets the difference from some questions."""
        best = min(pings, key=lambda ping: ping.error_s)
        if best.clock == own_clock():
            self.offset_s, self.error_s, self.due_s = 0.0, 0.0, float("inf")
        else:
            self.offset_s, self.error_s = best.offset_s, best.error_s
            self.due_s = time.monotonic() + REFRESH_S

    def _ping(self) -> Ping:
        asked_s = time.monotonic()
        clock, shown_s = answer(self.reference.clock.remote(), ANSWER_LIMIT_S, "the weight store")
        return Ping(clock, shown_s, asked_s, time.monotonic())
