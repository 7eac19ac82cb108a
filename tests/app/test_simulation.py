"""The scheduler without Ray: the real gate, cursor and batch builder, a fake clock, a fake engine, many steps."""

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.admission import Cursor, Gate, Ticket
from app.batch import Batch, BatchBuilder
from tests.app.tiny import scored, tiny_config

PROMPTS, GROUP = 4, 4
STEP_S = 1.0


@dataclass
class Running:
    """A group in the engine."""

    group: int
    version: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    waiting: int = GROUP


@dataclass
class World:
    """An engine with few slots, a trainer and a batcher, driven by events in the order of their time."""

    ahead: int
    steps: int
    seed: int = 0
    stragglers: str = "wait"
    slots: int = 12
    duration_s: Callable[[random.Random, int], float] = lambda rng, group: rng.expovariate(8.0)
    fails: float = 0.02
    ties: float = 0.15

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.config = tiny_config(
            steps=self.steps, max_async_rollout=self.ahead, stragglers=self.stragglers, groups_per_ticket=2
        )
        self.gate = Gate(PROMPTS, self.ahead, self.steps, groups_per_ticket=2)
        self.cursor = Cursor()
        self.outcomes: dict[int, list[str]] = {}
        self.ages: Counter[int] = Counter()
        self.trained_groups: list[int] = []
        self.idle_with_work_s = 0.0
        self.start(0, Cursor())

    def start(self, done: int, cursor: Cursor) -> None:
        """A trainer begins, for the first time or after a crash that lost everything in flight."""
        self.epoch = self.gate.begin(done, cursor)
        self.builder = BatchBuilder(self.config, done + 1, 1)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.queue: deque[tuple[Running, int]] = deque()
        self.running: list[tuple[Running, int]] = []
        self.tickets: dict[int, list[Running]] = {}
        self.batches: deque[Batch] = deque()
        self.training = False
        self.admit()

    def later(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay_s, next(self.order), event))

    def run(self, until: int) -> None:
        while self.gate.done < until:
            assert self.events, f"deadlock: {self.gate.done} of {until} steps done at {self.now:.0f} s"
            time_s, _, event = heapq.heappop(self.events)
            if self.queue and len(self.running) < self.slots:
                self.idle_with_work_s += time_s - self.now
            self.now = time_s
            event()

    def drain(self) -> None:
        """Lets everything that was started come to its end."""
        while self.events:
            self.now, _, event = heapq.heappop(self.events)
            event()

    # Admission and the engine.

    def admit(self) -> None:
        while (ticket := self.gate.ticket(len(self.gate.tickets))) is not None:
            groups = [Running(group, self.gate.done) for group in ticket.groups]
            self.tickets[ticket.index] = groups
            for one, index in itertools.product(groups, range(GROUP)):
                self.queue.append((one, index))
            self.fill(ticket)

    def fill(self, ticket: Ticket | None = None) -> None:
        while self.queue and len(self.running) < self.slots:
            sample = self.queue.popleft()
            self.running.append(sample)
            first = self.gate.done
            self.later(self.duration_s(self.rng, sample[0].group), lambda s=sample, v=first: self.finish(s, v))

    def finish(self, sample: tuple[Running, int], first: int) -> None:
        if sample not in self.running:
            return  # aborted meanwhile
        self.running.remove(sample)
        one, index = sample
        failed = self.rng.random() < self.fails
        reward = None if failed else (1.0 if self.is_tied(one.group) else float(index % 2))
        length = len(scored(one.group, index, reward)["token_ids"])
        versions = sorted(self.rng.randint(first, self.gate.done) for _ in range(length - 1))
        self.deliver(
            one,
            scored(
                one.group,
                index,
                reward,
                versions=[first, *versions],
                error="the engine died" if failed else None,
            ),
        )
        self.fill()

    def is_tied(self, group: int) -> bool:
        return random.Random(f"tie {group}").random() < self.ties

    def abort_stale(self) -> None:
        """As the rollout stage does it: what cannot be trained any more leaves the engine at once."""
        oldest = self.gate.done - self.config.max_off_policy_steps
        for sample in [s for s in (*self.running, *self.queue) if s[0].version < oldest]:
            (self.running if sample in self.running else self.queue).remove(sample)
            self.deliver(sample[0], scored(sample[0].group, sample[1], None, finish="abort", versions=[]))
        self.fill()

    def deliver(self, one: Running, row: dict[str, Any]) -> None:
        one.rows.append(row)
        one.waiting -= 1
        for index, groups in list(self.tickets.items()):
            if one in groups and not any(member.waiting for member in groups):
                del self.tickets[index]
                self.later(0.01, lambda g=groups, i=index: self.batch(g, self.gate.tickets[i].version))

    # The batcher and the trainer.

    def batch(self, groups: list[Running], version: int) -> None:
        awaited = self.gate.admitted_since if self.stragglers == "wait" else None
        for one in groups:
            if given_back := self.builder.add(one.rows, version):
                self.gate.give_back(self.epoch, given_back)
            while self.builder.complete(awaited):
                self.batches.append(self.builder.take())
        self.admit()
        self.train()

    def train(self) -> None:
        if self.batches and not self.training:
            self.training = True
            self.later(STEP_S * self.rng.uniform(0.5, 1.5), self.step_done)

    def step_done(self) -> None:
        batch = self.batches.popleft()
        assert batch.step == self.gate.done + 1
        self.record(batch)
        self.cursor = self.cursor.advanced(batch.shares[0]["groups"])
        self.training = False
        self.gate.done = batch.step
        self.abort_stale()
        self.admit()
        self.train()

    def record(self, batch: Batch) -> None:
        for row in batch.rows.to_pylist():
            self.outcomes.setdefault(row["sample_id"], []).append(row["outcome"])
            if row["outcome"] == "trained":
                self.ages[batch.step - 1 - min(row["versions"])] += 1
                self.trained_groups.append(row["group_id"])


def slow_groups(rng: random.Random, group: int) -> float:
    """One group in eight takes about three steps, whatever else is going on."""
    return rng.uniform(2.5, 3.5) * STEP_S if group % 8 == 5 else rng.uniform(0.01, 0.3)


@pytest.mark.parametrize(
    ("ahead", "stragglers", "steps"),
    [(0, "wait", 1000), (1, "wait", 1000), (2, "wait", 1000), (4, "wait", 1000), (1, "discard", 300)],
)
def test_a_thousand_steps_with_delays_and_failures(ahead, stragglers, steps):
    world = World(ahead, steps=steps, seed=ahead, stragglers=stragglers)
    world.run(until=steps)
    world.drain()
    assert max(world.ages) <= ahead
    assert sum(world.ages.values()) > 0.9 * steps * PROMPTS * GROUP
    settled = [sample for sample, bins in world.outcomes.items() for _ in bins]
    kept = [samples for _, samples in world.builder.kept]
    left = [sample["sample_id"] for samples in (*kept, *world.builder.discarded) for sample in samples]
    assert sorted(settled + left) == list(range(GROUP * world.gate.admitted)), "each started sample in one bin, once"


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_slow_groups_are_not_starved(ahead):
    """They are an eighth of the prompts and must be an eighth of what is learnt, although they take three steps."""
    world = World(ahead, steps=400, duration_s=slow_groups, slots=64, fails=0.0)
    world.run(until=400)
    slow = sum(group % 8 == 5 for group in world.trained_groups) / len(world.trained_groups)
    assert slow == pytest.approx(1 / 8, abs=0.01)
    assert max(world.ages) <= ahead


def test_without_waiting_slow_groups_are_aborted_and_their_slots_are_free_at_once():
    world = World(1, steps=400, duration_s=slow_groups, slots=64, fails=0.0, stragglers="discard")
    world.run(until=400)
    slow = sum(group % 8 == 5 for group in world.trained_groups) / len(world.trained_groups)
    assert slow < 0.02
    assert any(bins == ["canceled"] for bins in world.outcomes.values())
    assert max(world.ages) <= 1


def test_no_slot_stays_empty_while_a_sample_waits():
    """Slots are refilled as single samples finish: a slow sample holds its own slot and none of its siblings'."""
    world = World(2, steps=200, duration_s=lambda rng, group: 3.0 if rng.random() < 0.05 else 0.1, slots=5)
    world.run(until=200)
    assert world.idle_with_work_s == 0


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_crashes_lose_and_repeat_no_prompt(ahead):
    """Whatever was in flight or finished but untrained is drawn again; what was used up is not."""
    world = World(ahead, steps=300, seed=3)
    consumed: list[int] = []
    for until in (7, 50, 51, 180, 300):
        before = len(world.outcomes)
        world.run(until)
        assert len(world.outcomes) > before
        if until < 300:
            world.start(world.gate.done, world.cursor)
    consumed = [sample // GROUP for sample in world.outcomes]
    assert all(len(bins) == 1 for bins in world.outcomes.values())
    end, missing = world.cursor.next_group, set(world.cursor.missing)
    assert sorted(set(consumed)) == [group for group in range(end) if group not in missing]
    assert len(missing) <= PROMPTS * (ahead + 2)
