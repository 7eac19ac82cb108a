"""A whole run without GPUs, in one process, on a clock that jumps: what `bench.scale` measures.

Real: the admission actor's code, the prompts, the three stages of the stream (rollout with its sampler, environments,
batcher), the reading of a rank's share, the metrics actor's code, the store on disk. Stood in for: the engines (they
take the time that completions take, and answer with random tokens), the rewards, the trainer's arithmetic, and Ray and
Serve between the parts, whose messages are counted and weighed. So CPU seconds are those of the parts' own code, told
apart by part; what Ray adds to each message is measured by `bench.scale` apart from this.
"""

import asyncio
import contextvars
import itertools
import json
import pickle
import random
import selectors
import time
import types
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from app.admission import Admission, Cursor
from app.batch import SHARE, BatchBuilder
from app.batcher import Batcher
from app.clock import Clock
from app.config import Config, from_dict
from app.embedded import make_tokenizer
from app.engine import Completion, Sampling
from app.rollout import Rollout
from app.sampler import Sampler, samplings
from app.scoring import Environments
from app.tickets import Prompts, ticket_row
from app.trainer_data import read_share
from environments.batch import with_scores
from environments.score import Score
from metrics.actor import MetricsActor
from metrics.schema import spans_table

PART: contextvars.ContextVar[str] = contextvars.ContextVar("part", default="stand-ins")
NUM_TOKENS = 90
FIRST_TOKEN = 5
TIED_GROUPS = 0.1


@dataclass(frozen=True)
class Load:
    """What the run is like. Times are of the simulated clock."""

    engines: int = 64
    slots: int = 256
    prompts_per_step: int = 1_250
    group_size: int = 8
    groups_per_ticket: int = 25
    mean_tokens: int = 512
    max_tokens: int = 2_048
    tokens_per_s: float = 40.0  # of one slot
    step_s: float = 20.0  # of the trainer, the push of the weights included
    ranks: int = 64
    microbatches: int = 8
    max_async: int = 1
    steps: int = 10
    discards: bool = True  # groups whose rewards are all equal

    @property
    def samples_per_step(self) -> int:
        return self.prompts_per_step * self.group_size

    def config(self) -> Config:
        return from_dict(
            {
                "name": "scale",
                "model": "unused",
                "steps": self.steps,
                "environments": [{"name": "sums", "reward_min": 0.0, "reward_max": 1.0}],
                "discard_group_zero_advantage": self.discards,
                "prompts_per_step": self.prompts_per_step,
                "group_size": self.group_size,
                "groups_per_ticket": self.groups_per_ticket,
                "max_prompt_tokens": 32,
                "max_tokens": self.max_tokens,
                "seq_len": 4 * self.max_tokens,
                "max_async_rollout": self.max_async,
                "num_workers": self.ranks,
                "num_engines": self.engines,
                "engine": {"max_num_seqs": self.slots},
            }
        )


@dataclass
class Meters:
    """CPU seconds by part; number and bytes of messages by kind."""

    cpu_s: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)

    def count(self, kind: str, num_bytes: int = 0) -> None:
        self.messages[kind] += 1
        self.sizes[kind] += num_bytes

    def task(self, loop: asyncio.AbstractEventLoop, work: Coroutine, **options: Any) -> asyncio.Task:
        """The loop's task factory: every task's CPU time goes to the part whose context it was made in."""

        async def measured() -> Any:
            return await self._metered(work)

        return asyncio.Task(measured(), loop=loop, **options)

    @types.coroutine
    def _metered(self, work: Coroutine) -> Any:
        value, error, part = None, None, PART.get()
        while True:
            start = time.thread_time()
            try:
                waiting = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                self.cpu_s[part] += time.thread_time() - start
            value = error = None
            try:
                value = yield waiting
            except BaseException as raised:  # noqa: BLE001 - handed to the work
                error = raised


class _Jump(selectors.SelectSelector):
    """Moves the clock to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError(f"deadlock: at {self.now:.0f} s every part waits for another")
        self.now += max(0.0, timeout)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only while everything waits."""

    def __init__(self) -> None:
        self.jump = _Jump()
        super().__init__(self.jump)

    def time(self) -> float:
        return self.jump.now


class Handle:
    """In place of the handle of an actor: `handle.method.remote(…)` runs as a task of that part, and is counted."""

    def __init__(self, part: str, target: Any, meters: Meters) -> None:
        self.part, self.target, self.meters = part, target, meters
        self.tasks: set[asyncio.Task] = set()

    def __getattr__(self, method: str) -> Any:
        return types.SimpleNamespace(remote=lambda *a, **k: self.call(method, *a, **k))

    def call(self, method: str, *arguments: Any, **options: Any) -> asyncio.Task:
        self.meters.count(f"{self.part}.{method}", sum(map(size_of, [*arguments, *options.values()])))
        context = contextvars.copy_context()
        context.run(PART.set, self.part)
        work = getattr(self.target, method)(*arguments, **options)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


def size_of(value: Any) -> int:
    """Bytes of a message's argument on the wire."""
    return value.nbytes if isinstance(value, pa.Table) else len(pickle.dumps(value, protocol=5))


class Engines:
    """In place of the handle of the Serve application: slots that are busy for as long as their completions take."""

    def __init__(self, load: Load, meters: Meters) -> None:
        self.load, self.meters, self.rng = load, meters, random.Random(0)
        self.free = [asyncio.Semaphore(load.slots) for _ in range(load.engines)]
        self.turn = itertools.cycle(range(load.engines))
        self.pushes = [(0.0, 0)]  # when, and which version
        length = 2 * load.max_tokens
        self.tokens = tuple(self.rng.randrange(FIRST_TOKEN, NUM_TOKENS) for _ in range(length))
        self.logprobs = tuple(-self.rng.expovariate(1.0) for _ in range(length))
        self.busy_s = 0.0
        self.generate = types.SimpleNamespace(remote=self._generate)

    def push(self, version: int) -> None:
        self.pushes.append((asyncio.get_running_loop().time(), version))

    def broadcast(self, method: str, *arguments: Any) -> Any:
        raise NotImplementedError(f"{method}: with `stragglers: wait` nothing is aborted; got {arguments}")

    async def _generate(self, key: str, prompt_ids: list[int], sampling: Sampling, min_version: int) -> Any:
        assert self.pushes[-1][1] >= min_version, f"{key}: version {min_version} has not been pushed"
        engine = next(self.turn)
        context = contextvars.copy_context()
        context.run(PART.set, "stand-ins")
        loop = asyncio.get_running_loop()
        drawn = [loop.create_task(self._complete(engine), context=context) for _ in range(sampling.n)]
        done = await asyncio.gather(*drawn)
        self.meters.count("engine.generate", len(prompt_ids) * 8 + sum(len(one.token_ids) * 24 for one in done))
        return done

    async def _complete(self, engine: int) -> Completion:
        loop, load = asyncio.get_running_loop(), self.load
        length = min(load.max_tokens, 1 + int(self.rng.expovariate(1 / load.mean_tokens)))
        first = self.rng.randrange(load.max_tokens)
        async with self.free[engine]:
            start = loop.time()
            await asyncio.sleep(length / load.tokens_per_s)
            self.busy_s += loop.time() - start
        return Completion(
            token_ids=self.tokens[first : first + length],
            logprobs=self.logprobs[first : first + length],
            versions=self._versions(start, length),
            finish_reason="length" if length == load.max_tokens else "stop",
            start_s=start,
            end_s=loop.time(),
            engine=f"engine {engine}",
        )

    def _versions(self, start: float, length: int) -> tuple[int, ...]:
        """Tokens are of the version that was there when they were sampled."""
        versions: list[int] = []
        for moment, version in reversed(self.pushes):
            since = min(length, max(0, round((moment - start) * self.load.tokens_per_s)))
            versions = [version] * (length - since - len(versions)) + versions
            if since == 0:
                return tuple(versions)
        raise AssertionError("the first push is before every completion")


class Rewards:
    """In place of an environment's processes; one group in ten has equal rewards."""

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def score(self, table: pa.Table) -> pa.Table:
        now, is_tied = asyncio.get_running_loop().time(), self.rng.random() < TIED_GROUPS
        rewards = [0.0 if is_tied else float(self.rng.random() < 0.5) for _ in range(table.num_rows)]
        scores = [Score(r, {"single": 1.0, "first": r}, {"sum": "7"}, {}, None, now, now + 0.001) for r in rewards]
        return with_scores(table, scores)


class ScaledRollout(Rollout):
    """The stage with its parts handed to it; a worker of Ray Data finds them by name."""

    def __init__(self, config: Config, model: Path, gate: Handle, engines: Engines) -> None:
        self.sampler = Sampler("scale", model, [], samplings(config, config.group_size), config.max_prompt_tokens)
        self.sampler.engines = engines  # type: ignore[misc]
        self.gate, self.max_off_policy_steps = gate, config.max_off_policy_steps
        self.seed, self.done, self.watching, self.running = None, -1, None, {}


class ScaledEnvironments(Environments):
    def __init__(self) -> None:
        self.workers = {"sums": Rewards()}  # type: ignore[dict-item]
        self.clock = Clock()


class ScaledBatcher(Batcher):
    def __init__(self, config: Config, gate: Handle, metrics: Handle) -> None:
        self.config, self.gate, self.metrics, self.empty_steps = config, gate, metrics, 0

    def begin(self, epoch: int) -> None:
        self.epoch, self.builder = epoch, BatchBuilder(self.config, 1, self.config.num_workers)

    def _admitted_since(self, version: int) -> list[int]:
        self.gate.meters.count("admission.admitted_since")
        return self.gate.target.gate.admitted_since(version)

    def _log(self, step: int, rows: pa.Table) -> None:
        self.metrics.log_samples.remote("batcher/1", step, rows)


@dataclass
class StepCost:
    """One step: seconds of the simulated clock, CPU seconds by part, resident memory after it."""

    step: int
    took_s: float
    cpu_s: dict[str, float]
    rss_mib: float


class Run:
    """One simulated run in a folder."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load, self.folder, self.config = load, folder, load.config()
        self.meters, self.costs = Meters(), []
        self.shares: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()

    def go(self) -> "Run":
        """Runs all steps, with the costs of each in `costs`."""
        model = self.folder / "model"
        make_tokenizer().save_pretrained(model)
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.get_loop().set_task_factory(self.meters.task)
            runner.run(self._main(model))
        return self

    async def _main(self, model: Path) -> None:
        load, config = self.load, self.config
        code = Admission.__ray_metadata__.modified_class
        pace = (config.prompts_per_step, config.max_async_rollout, config.steps, config.groups_per_ticket)
        self.gate = Handle("admission", code(*pace), self.meters)
        settings = {"attempt": 1, "resume_step": 0, "config": config.model_dump(), "environments": []}
        self.actor = MetricsActor(str(self.folder), settings | {"num_slots": load.engines * load.slots})
        self.metrics = Handle("metrics", self.actor, self.meters)
        self.engines = Engines(load, self.meters)
        self.rollout = ScaledRollout(config, model, self.gate, self.engines)
        self.environments, self.batcher = ScaledEnvironments(), ScaledBatcher(config, self.gate, self.metrics)
        self.epoch = await self.gate.begin.remote(0, Cursor())
        self.batcher.begin(self.epoch)
        self.failed: asyncio.Future = asyncio.get_running_loop().create_future()
        source = self._of_part("tickets", self._tickets())
        trainer = self._of_part("trainer rank 0", self._trainer())
        await asyncio.wait([source, trainer, self.failed], return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            self.failed.result()
        await trainer
        source.cancel()
        if self.rollout.watching is not None:
            self.rollout.watching.cancel()
        await self.actor.close("finished")

    def _of_part(self, part: str, work: Coroutine) -> asyncio.Task:
        context = contextvars.copy_context()
        context.run(PART.set, part)
        task = asyncio.get_running_loop().create_task(work, context=context)
        task.add_done_callback(self._raise)
        return task

    def _raise(self, task: asyncio.Task) -> None:
        if not task.cancelled() and task.exception() is not None and not self.failed.done():
            self.failed.set_exception(task.exception())

    async def _tickets(self) -> None:
        """The source of the stream, as `app.tickets.Tickets` reads it."""
        prompts = Prompts(self.config.environments, self.config.seed, self.config.prompts_per_step)
        going: set[asyncio.Task] = set()
        for index in itertools.count():
            ticket = await self.gate.admit.remote(self.epoch, index)
            if ticket is None:
                return
            row = ticket_row(self.epoch, ticket, prompts)
            self.meters.count("stream.ticket", row.nbytes)
            going.add(task := self._of_part("rollout", self._flow(row)))
            task.add_done_callback(going.discard)

    async def _flow(self, row: pa.Table) -> None:
        """One ticket through the stages, each in a process of its own in a real run."""
        drawn = await self.rollout(row)
        self.meters.count("stream.drawn", drawn.nbytes)
        scored = await self._of_part("environments", self._scored(drawn))
        self.meters.count("stream.scored", scored.nbytes)
        await self._of_part("batcher", self._batched(scored))

    async def _scored(self, drawn: pa.Table) -> pa.Table:
        return self.environments(drawn)

    async def _batched(self, scored: pa.Table) -> None:
        shares = self.batcher(scored)
        for first in range(0, shares.num_rows, self.load.ranks):
            step = shares.slice(first, self.load.ranks)
            self.meters.count("stream.shares of a step", step.nbytes)
            self.shares.put_nowait(step.slice(0, 1))

    async def _trainer(self) -> None:
        loop, cursor, done_s, before = asyncio.get_running_loop(), Cursor(), 0.0, Counter[str]()
        for step in range(1, self.load.steps + 1):
            data = read_share(pa.Table.from_batches((await self.shares.get()).to_batches(), SHARE))
            assert data.step == step, f"step {data.step} came in place of {step}"
            await asyncio.sleep(self.load.step_s)
            self.engines.push(step)
            cursor = cursor.advanced(data.groups)
            started = await self.gate.step_done.remote(step)
            await self.metrics.log_step.remote(
                "trainer/1",
                step,
                step=step,
                values={"loss/policy": 0.0, "entropy": 1.0, "grad_norm": 0.5, "tokens/trained": 1.0},
                spans=spans_table(self._spans(step, done_s, loop.time())),
                started=started * self.load.group_size,
                after=("batcher/1", data.samples_message),
            )
            spent = Counter(self.meters.cpu_s)
            rss = psutil.Process().memory_info().rss / 2**20
            self.costs.append(StepCost(step, loop.time() - done_s, dict(spent - before), rss))
            done_s, before = loop.time(), spent

    def _spans(self, step: int, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """What all ranks report: their own step, and five kinds of work in each micro-batch."""
        work = max(start_s, end_s - self.load.step_s)
        kinds = ("forward", "compute_entropy", "loss_computation", "backward", "data_to_device")
        rows: list[dict[str, Any]] = []
        for rank in range(self.load.ranks):
            common = {"step": step, "lane": f"trainer {rank}"}
            rows.append(common | {"kind": "step", "start_s": start_s, "end_s": end_s})
            rows.append(common | {"kind": "waiting_for_data", "start_s": start_s, "end_s": work})
            share = self.load.step_s / (self.load.microbatches * len(kinds))
            for number, (batch, kind) in enumerate(itertools.product(range(self.load.microbatches), kinds)):
                begin = work + number * share
                rows.append(common | {"kind": kind, "start_s": begin, "end_s": begin + share, "microbatch": batch})
        return rows

    def held(self) -> dict[str, int]:
        """How much the parts that last as long as the run remember: what must not grow with its steps."""
        books = self.actor.core.books
        return {
            "bytes of the gate": len(pickle.dumps(vars(self.gate.target.gate))),
            "bins of the books": len(books.bins),
            "ranges of sample ids": len(books.ids.ranges),
            "segments waiting": len(books.pending),
            "versions settled": len(self.batcher.builder.settled),  # type: ignore[union-attr]
            "groups running": len(self.rollout.running),
        }

    def stored(self) -> dict[str, int]:
        """Bytes on disk by table."""
        root = self.folder / "metrics"
        return {
            table: sum(path.stat().st_size for path in (root / table).glob("*"))
            for table in ("samples", "series", "spans")
        }

    def as_json(self) -> str:
        return json.dumps({"load": vars(self.load), "steps": [vars(cost) for cost in self.costs]})
