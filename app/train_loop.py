"""The training loop of one Ray Train worker. `run` is the method; the rest is its vocabulary."""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from app import admission, checkpoint, sealed
from app.checkpoint import ResumePoint
from app.clock import Clock
from app.config import Config
from app.evaluator import ACTOR_NAME as EVALUATOR
from app.evaluator import TIMEOUT_S as EVAL_TIMEOUT_S
from app.evaluator import due
from app.publish import Publisher
from app.run_context import RunContext, answer
from app.run_dir import RunDir
from app.trainer import Trainer
from app.trainer_data import TrainerData, read_share
from app.weights import store
from metrics.schema import SPANS
from metrics.verdict import sentence

CONTROL_TIMEOUT_S = 60
ENGINES_TIMEOUT_S = 900


def run(config: Config, context: RunContext) -> None:
    """Trains until the last step. The same on every rank; only rank 0 talks to the rest of the run."""
    worker = Worker(config, context)
    worker.enter("sending the weights to the engines")
    worker.publish(worker.resume_point.step)
    if not worker.resume_point.step:  # a checkpoint is sealed after the evals of its step
        worker.begin_evals(0)
    worker.open_gate()
    worker.enter("waiting for the first batch")
    for batch in worker.batches():
        values = worker.trainer.train_step(batch)
        worker.finish_evals()
        values |= worker.publish(batch.step)
        worker.step_done(batch)
        worker.begin_evals(batch.step)
        written = worker.write_checkpoint(batch)
        if written or batch.step == config.steps:
            worker.finish_evals()  # a resume would not make them again, and nothing comes after the last
        worker.log(batch, values | worker.stored())
        worker.enter(None)
        worker.seal(written, batch)
    worker.finish_evals()
    worker.stored()


class Worker:
    """One rank: the trainer backend and its ways to the other parts of the run."""

    def __init__(self, config: Config, context: RunContext) -> None:
        self.config = config
        self.context = context
        self.rank = dist.get_rank()
        start_limit_s = max(ENGINES_TIMEOUT_S, config.stall_timeout_s)
        # The others wait here for what rank 0 waits for.
        longest_s = max(start_limit_s, EVAL_TIMEOUT_S) + CONTROL_TIMEOUT_S
        self.cpu_group = dist.new_group(backend="gloo", timeout=timedelta(seconds=longest_s))
        self.phase: str | None = None
        self.enter("loading the trainer")
        self.trainer = load_backend(config, context, device_of_worker(config))
        if context.shares_prompts and not self.trainer.shares_prompts and config.packing:
            raise RuntimeError("flash-attn is installed for this worker and not for the driver: install it for both")
        self.resume_point = self._restored()
        self.spans = self.trainer.spans
        self.spans.clock = Clock(store(context.namespace))
        self.cursor = self.resume_point.cursor
        self.started = 0
        self.evaluating = False
        self.evaluation: ray.ObjectRef | None = None
        self.logged: ray.ObjectRef | None = None
        # Consumed from now on, so that the stream's actors start while the engines do; the gate still holds it.
        self.stream = Ahead(_stream_of_rank()) if self.resume_point.step < config.steps else None
        self.enter("waiting for the engines")
        if self.rank == 0:
            self.gate = admission.gate(context.namespace)
            answer(self.gate.wait_for_engines.remote(), start_limit_s, "the start of the engines")
            answer(self.gate.mark_progress.remote(), CONTROL_TIMEOUT_S, "the admission actor")
        dist.barrier(group=self.cpu_group)
        self.publisher = Publisher(config, context, self.trainer)

    def enter(self, phase: str | None) -> None:
        """What the start is doing, for the run's record; None once it is over."""
        if self.rank == 0 and phase != self.phase:
            RunDir(self.context.run_dir).enter(phase)
        self.phase = phase

    def publish(self, version: int) -> dict[str, float]:
        self.spans.clock.refresh()
        return self.publisher.push(version, self.spans)

    def open_gate(self) -> None:
        """Lets the stream begin; the clock of the first step starts here."""
        if self.rank == 0:
            begun = self.gate.begin.remote(self.resume_point.step, self.resume_point.cursor)
            answer(begun, CONTROL_TIMEOUT_S, "the admission actor")
        dist.barrier(group=self.cpu_group)
        self.spans.take(0)  # what happened before the loop is charged to no step
        self.step_end_s = self.spans.clock.now()

    def batches(self) -> Iterator[TrainerData]:
        """This rank's share of each step, in order, until the last one."""
        if self.stream is None:
            return
        waiting_since = self.spans.clock.now()
        for table in self.stream:
            self.spans.add("waiting_for_data", waiting_since, self.spans.clock.now())
            with self.spans.measure("prepare_tensors"):
                data = read_share(table, self.trainer.shares_prompts)
            if self.phase is not None:
                self.enter("training on the first batch")
            yield data
            if data.step >= self.config.steps:
                return
            waiting_since = self.spans.clock.now()
        raise RuntimeError(f"the stream of rollouts ended before step {self.config.steps}; see the driver's log")

    def step_done(self, batch: TrainerData) -> None:
        """Tells the gate, which lets the next groups start."""
        self.cursor = self.cursor.advanced(batch.groups)
        if self.rank == 0:
            self.started = answer(self.gate.step_done.remote(batch.step), CONTROL_TIMEOUT_S, "the admission actor")

    def begin_evals(self, step: int) -> None:
        """Starts the evals that are due; training goes on meanwhile."""
        self.evaluating = bool(due(self.config, step))
        if self.evaluating and self.rank == 0:
            self.evaluation = self.context.actor(EVALUATOR).run.remote(step)

    def finish_evals(self) -> None:
        """Waits for the evals that were begun. Before every push: an eval is of one version of the weights."""
        if not self.evaluating:
            return
        self.evaluating = False
        with self.spans.measure("eval"):
            if self.rank == 0:
                start_s, end_s = answer(self.evaluation, EVAL_TIMEOUT_S, "the evaluator")
                self.spans.add("eval", start_s, end_s, lane="evals")
                answer(self.gate.mark_progress.remote(), CONTROL_TIMEOUT_S, "the admission actor")
            dist.barrier(group=self.cpu_group)

    def write_checkpoint(self, batch: TrainerData) -> Path | None:
        """The bulk of a checkpoint, charged to its step; None where none is due."""
        every = self.config.checkpoint_every
        if not every or not (batch.step % every == 0 or batch.step == self.config.steps):
            return None
        with self.spans.measure("checkpoint"):
            return checkpoint.write(self.context.checkpoints, self.trainer, batch.step)

    def seal(self, written: Path | None, batch: TrainerData) -> None:
        """A checkpoint counts once the numbers of its step are stored: a resume would not make them again.

        All ranks wait for it: one that failed in the next step would take the run down before.
        """
        if written is None:
            return
        if self.rank == 0:
            self.stored()
            config = self.config
            checkpoint.seal(
                written, self.trainer, ResumePoint(batch.step, self.cursor), config.keep_last, config.keep_every
            )
        dist.barrier(group=self.cpu_group)

    def log(self, batch: TrainerData, values: dict[str, float]) -> None:
        """Closes the step and sends it."""
        now = self.spans.clock.now()
        self.spans.add("step", self.step_end_s, now)
        self.step_end_s = now
        tables: list[Any] = [None] * dist.get_world_size()
        own = self.spans.take(batch.step)
        dist.gather_object(own, tables if self.rank == 0 else None, group=self.cpu_group)
        if self.rank != 0:
            return
        self.logged = self.context.metrics().log_step.remote(
            self.context.source("trainer"),
            batch.step,
            step=batch.step,
            values=values,
            spans=pa.concat_tables(tables) if tables else SPANS.empty_table(),
            started=self.started * self.config.group_size,
            after=(self.context.source("batcher"), batch.samples_message),
        )
        if self.config.stop_on:
            self.stored()

    def stored(self) -> dict[str, float]:
        """Waits, for a bounded time, until the last message is stored; returns how many were not.

        Raises SelfCheckError when its step failed a check of `stop_on`.
        """
        if self.logged is None:
            return {}
        waiting = ray.wait([self.logged], timeout=0)[1]
        with self.spans.measure("waiting_for_metrics"):
            row = answer(self.logged, CONTROL_TIMEOUT_S, "the metrics actor")
        self.logged = None
        refuse_red(row["checks"], self.config.stop_on)
        return {"metrics/unacknowledged": float(len(waiting))}

    def _restored(self) -> ResumePoint:
        newest = sealed.newest(self.context.checkpoints) if self.context.attempt > 1 else None
        return checkpoint.restore(newest, self.trainer) if newest else ResumePoint()


class SelfCheckError(RuntimeError):
    """A self-check failed on which the configuration stops the run."""


def refuse_red(checks: Iterable[Mapping[str, Any]], stop_on: Sequence[str]) -> None:
    """Ends the run at the first failed check that is named in `stop_on`."""
    red = next((one for one in checks if not one["ok"] and one["check"] in stop_on), None)
    if red is not None:
        raise SelfCheckError(sentence(red))


class Ahead(Iterator[pa.Table]):
    """Takes the next item of an iterator in a thread, so that waiting for it overlaps with work."""

    def __init__(self, items: Iterator[pa.Table]) -> None:
        self.items = items
        self.taker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead")
        self.coming: Future[pa.Table | None] = self.taker.submit(next, items, None)

    def __next__(self) -> pa.Table:
        item = self.coming.result()
        if item is None:
            raise StopIteration
        self.coming = self.taker.submit(next, self.items, None)
        return item


def _stream_of_rank() -> Iterator[pa.Table]:
    """This rank's rows of the dataset, one a step."""
    stream = ray.train.get_dataset_shard("rollouts").iter_batches(
        batch_size=None, prefetch_batches=0, batch_format="pyarrow"
    )
    return (table for table in stream if table.num_rows)


def load_backend(config: Config, context: RunContext, device: torch.device) -> Trainer:
    """The trainer class that the config names."""
    module, _, name = config.backend.partition(":")
    return getattr(importlib.import_module(module), name)(config, context.model, device)


def device_of_worker(config: Config) -> torch.device:
    """The worker's GPU when Ray gave it one, else the CPU with as many threads as configured (Ray leaves one)."""
    device = ray.train.torch.get_device()
    if device.type == "cpu":
        torch.set_num_threads(config.trainer_threads)
    else:
        # Ray shows each worker the GPUs of all. FSDP and NCCL take the current one: the first, unless it is said.
        torch.cuda.set_device(device)
    return device
