"""The gate that bounds staleness: a group of completions may only start when the batch it will land in is near.

One number bounds everything. With `max_async_rollout` N, the groups of batch b may start once the trainer has done
step b - N - 1. A discarded group gives its place back, so a fresh prompt takes it. A trainer restart opens a new
epoch, and streams of an older epoch end by themselves.

A group admitted after `version` steps is young enough for every batch up to version + max_off_policy_steps + 1. So
that long completions are not overtaken until they are too old, batches wait for them in time (`stragglers: wait`).
"""

import asyncio
import contextlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import ray

GATE_NAME = "admission"


@dataclass(frozen=True)
class Cursor:
    """Which groups have been consumed: every id below `next_group` except those in `missing`."""

    next_group: int = 0
    missing: tuple[int, ...] = ()

    def advanced(self, consumed: Iterable[int]) -> "Cursor":
        """The cursor after some more groups have been consumed."""
        consumed = set(consumed)
        end = max([self.next_group, *(group + 1 for group in consumed)])
        waiting = {*self.missing, *range(self.next_group, end)} - consumed
        return Cursor(end, tuple(sorted(waiting)))


@dataclass(frozen=True)
class Ticket:
    """Permission to start these groups. A ticket is remembered, so a retried read replays exactly."""

    index: int
    groups: tuple[int, ...]
    version: int  # steps that were done when it was made: no token of its groups is from older weights
    admitted: int  # groups of the epoch up to here, its own included


@dataclass(frozen=True, order=True)
class QueuePlace:
    """A run's place in the queue. What sorts first starts first."""

    falling_priority: int
    since: float  # unix seconds at which it began to wait
    run_id: str
    wanted: Mapping[str, float] = field(compare=False)  # what Ray will reserve for it, by resource
    is_starting: bool = field(default=False, compare=False)  # it has its turn, and may not have reserved it yet


class Issued(Sequence[Ticket]):
    """The tickets of an epoch. Two numbers each are kept, since an epoch may have millions: the order of its groups
    follows from its cursor (first what was in flight before, then fresh ones)."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.ends = array("q")  # of each ticket: groups admitted up to it, its own included
        self.versions = array("q")

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> Ticket: ...

    @overload
    def __getitem__(self, index: slice) -> list[Ticket]: ...

    def __getitem__(self, index: int | slice) -> Ticket | list[Ticket]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        first = self.ends[index - 1] if index else 0
        groups = tuple(map(self._group, range(first, self.ends[index])))
        return Ticket(index, groups, self.versions[index], self.ends[index])

    @property
    def admitted(self) -> int:
        """Groups of all tickets."""
        return self.ends[-1] if self.ends else 0

    def issue(self, count: int, version: int) -> Ticket:
        """The next ticket, of so many groups."""
        self.ends.append(self.admitted + count)
        self.versions.append(version)
        return self[len(self) - 1]

    def admitted_until(self, version: int) -> int:
        """Groups of the tickets of at most that version."""
        later = bisect_right(self.versions, version)
        return self.ends[later - 1] if later else 0

    def _group(self, place: int) -> int:
        again = self.cursor.missing
        return again[place] if place < len(again) else self.cursor.next_group + place - len(again)


@dataclass
class Gate:
    """The arithmetic of admission, without clocks or actors."""

    prompts_per_step: int
    max_async: int
    steps: int
    groups_per_ticket: int = 1
    epoch: int = -1
    done: int = 0
    first: int = 0  # steps that were done when the epoch began
    returned: int = 0
    tickets: Issued = field(default_factory=lambda: Issued(Cursor()))

    def begin(self, done: int, cursor: Cursor) -> int:
        """A trainer starts (again) with `done` steps behind it; returns the new epoch."""
        self.epoch += 1
        self.done = self.first = done
        self.returned = 0
        self.tickets = Issued(cursor)
        return self.epoch

    @property
    def admitted(self) -> int:
        """Groups that have started in this epoch."""
        return self.tickets.admitted

    def limit(self) -> int:
        """Groups that may have started in this epoch."""
        batches = min(self.done + self.max_async + 1, self.steps) - self.first
        return batches * self.prompts_per_step + self.returned

    def ended(self, epoch: int) -> bool:
        return epoch != self.epoch or self.done >= self.steps

    def ticket(self, index: int) -> Ticket | None:
        """The ticket of this index, made now if the limit allows; None when it has to wait."""
        if index < len(self.tickets):
            return self.tickets[index]
        count = min(self.groups_per_ticket, self.limit() - self.admitted)
        if count <= 0:
            return None
        return self.tickets.issue(count, self.done)

    def admitted_since(self, version: int) -> list[int]:
        """How many groups of the epoch were admitted while at most v steps were done, for v from `version` to now."""
        return [self.tickets.admitted_until(v) for v in range(version, self.done + 1)]

    def give_back(self, epoch: int, count: int) -> None:
        """`count` groups of this epoch were discarded: as many fresh ones may start."""
        if epoch == self.epoch:
            self.returned += count


@ray.remote(num_cpus=0)
class Admission:
    """The gate as an actor of the run; waiting is asynchronous, every wait ends with a new epoch or the last step."""

    def __init__(self, prompts_per_step: int, max_async: int, steps: int, groups_per_ticket: int) -> None:
        self.gate = Gate(prompts_per_step, max_async, steps, groups_per_ticket)
        self.changed = asyncio.Condition()
        self.news = 0
        self.batchers: set[int] = set()
        self.engines_answered = asyncio.Event()
        self.engines_problem: str | None = None
        self.place: QueuePlace | None = None

    async def engines_ready(self, problem: str | None = None) -> None:
        """Said once by the driver: the engines can be asked, or why they never will."""
        self.engines_problem = problem
        self.engines_answered.set()

    async def stand(self, place: QueuePlace) -> None:
        """The run's place among those that wait for the cluster, until its trainer and its engines are there."""
        self.place = place

    async def place_in_queue(self) -> QueuePlace | None:
        return self.place

    async def wait_for_engines(self) -> None:
        """Asked by the trainer once it is there: from then on the run has reserved all that it needs."""
        await self.engines_answered.wait()
        self.place = None
        if self.engines_problem is not None:
            raise RuntimeError(self.engines_problem)

    async def begin(self, done: int, cursor: Cursor) -> int:
        async with self.changed:
            epoch = self.gate.begin(done, cursor)
            self.changed.notify_all()
        return epoch

    async def join(self) -> tuple[int, int]:
        """(epoch, steps done when it began), once a trainer has begun."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.gate.epoch >= 0)
        return self.gate.epoch, self.gate.first

    async def admit(self, epoch: int, index: int) -> Ticket | None:
        """Waits until ticket `index` may start; None is the end of the stream."""
        async with self.changed:
            await self.changed.wait_for(lambda: self._over(epoch) or self.gate.ticket(index) is not None)
            return None if self._over(epoch) else self.gate.ticket(index)

    async def register_batcher(self, epoch: int) -> bool:
        """False for a second one: the first died, and the groups in its memory are lost with it."""
        if epoch in self.batchers:
            return False
        self.batchers.add(epoch)
        return True

    async def step_done(self, step: int) -> int:
        """Moves the gate; returns how many groups have been allowed to start in this epoch."""
        async with self.changed:
            self.gate.done = max(self.gate.done, step)
            self.changed.notify_all()
        return self.gate.admitted

    async def give_back(self, epoch: int, count: int) -> None:
        async with self.changed:
            self.gate.give_back(epoch, count)
            self.changed.notify_all()

    async def admitted_since(self, version: int) -> list[int]:
        return self.gate.admitted_since(version)

    async def done_after(self, step: int, timeout_s: float = 30.0) -> int:
        """Long poll: the steps done, as soon as they are more than `step` or the time is up."""
        async with self.changed:
            waiting = self.changed.wait_for(lambda: self.gate.done > step)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting, timeout_s)
        return self.gate.done

    async def mark_progress(self) -> None:
        """Something slow that is no step (the start, an eval) has come to its end."""
        self.news += 1

    async def progress(self) -> tuple[int, int]:
        """Changes whenever the run gets on; what does not change for long has stalled."""
        return self.gate.done, self.news

    def _over(self, epoch: int) -> bool:
        return self.gate.ended(epoch)


def gate(namespace: str) -> Any:
    """The admission actor of the run."""
    return ray.get_actor(GATE_NAME, namespace=namespace)
