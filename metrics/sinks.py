"""Places besides the run directory that get a run's numbers. A sink never stops or delays a run; its trouble is
shown."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

CAPACITY = 10_000
CLOSE_TIMEOUT_S = 60.0
WANDB_START_TIMEOUT_S = 60.0


class Sink(Protocol):
    """Takes scalars by step. `trouble` says, once, what went wrong since it was last asked."""

    name: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def trouble(self) -> str | None: ...

    def close(self, state: str) -> None: ...


Write = Callable[[int, Mapping[str, float]], None]
Finish = Callable[[str], None]
Say = Callable[[str], None]


class ThreadedSink:
    """A sink that works in a thread of its own: a slow or failing service costs the caller nothing.

    `open_writer` is called in the thread, with a way to say what went wrong, and returns (write, finish). When it
    fails, the sink gives up: what a service refuses once it refuses at every step.
    """

    def __init__(self, name: str, open_writer: Callable[[Say], tuple[Write, Finish]]) -> None:
        self.name = name
        self.open_writer = open_writer
        self.waiting: queue.Queue[tuple[int, dict[str, float]] | str] = queue.Queue(CAPACITY)
        self.problem: str | None = None
        self.num_dropped = 0
        self.thread = threading.Thread(target=self.work, name=f"metrics to {name}", daemon=True)
        self.thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self.thread.is_alive():
            return
        try:
            self.waiting.put_nowait((step, dict(values)))
        except queue.Full:
            self.num_dropped += 1

    def work(self) -> None:
        try:
            write, finish = self.open_writer(self.say)
        except Exception as error:  # noqa: BLE001 - a service may raise anything, and may not stop the run
            self.say(f"{described(error)}; gave up, nothing is sent")
            return
        while isinstance(item := self.waiting.get(), tuple):
            self.attempt(write, *item)
        self.attempt(finish, item)

    def attempt(self, action: Callable[..., None], *arguments: Any) -> None:
        """The one border where a foreign service may fail in any way. A failure becomes words for the checks."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 - a service may raise anything, and may not stop the run
            self.say(described(error))

    def say(self, what: str) -> None:
        self.problem = f"{self.name}: {what}; the run goes on, its own record is complete"

    def trouble(self) -> str | None:
        problem, self.problem = self.problem, None
        num_dropped, self.num_dropped = self.num_dropped, 0
        if num_dropped:
            problem = f"{problem or self.name}: {num_dropped} rows were dropped because {CAPACITY} are waiting"
        return problem

    def close(self, state: str) -> None:
        """Lets the service finish, for a bounded time."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        try:
            self.waiting.put(state, timeout=CLOSE_TIMEOUT_S if self.thread.is_alive() else 0)
        except queue.Full:
            self.num_dropped += self.waiting.qsize()
        self.thread.join(max(0.0, deadline - time.monotonic()))
        if self.thread.is_alive():
            self.say(f"did not finish within {CLOSE_TIMEOUT_S:g} s")


def close_all(sinks: Sequence[Sink], state: str) -> None:
    """Closes them side by side: whoever waits for the metrics to be closed waits for one sink, however many hang."""
    with ThreadPoolExecutor(max_workers=len(sinks) or 1) as closers:
        list(closers.map(lambda sink: sink.close(state), sinks))


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def wandb_sink(run_dir: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> ThreadedSink:
    """Weights & Biases: the same keys, `step` as the explicit axis of every chart, one W&B run over all attempts.

    settings: project, mode ("online", "offline"), entity. Offline needs neither account nor network. Where online
    cannot be reached it goes on offline; `wandb sync RUN/wandb/*` sends that later, all attempts to the same W&B run.
    """

    def start(wandb: Any, mode: str) -> Any:
        return wandb.init(
            project=settings.get("project") or "telescope",
            entity=settings.get("entity"),
            mode=mode,
            id=run_dir.name,
            name=run_dir.name,
            dir=str(run_dir),
            resume="allow",
            config=dict(config),
            settings=wandb.Settings(init_timeout=WANDB_START_TIMEOUT_S, silent=True, console="off"),
        )

    def open_writer(say: Say) -> tuple[Write, Finish]:
        import wandb

        mode = settings.get("mode") or "offline"
        try:
            run = start(wandb, mode)
        except Exception as error:
            if mode == "offline":
                raise
            say(f"{described(error)}; goes on offline, send it later with: wandb sync {run_dir.name}/wandb/*")
            wandb.teardown()  # else the id is still in use
            run = start(wandb, "offline")
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return (lambda step, values: run.log({**values, "step": step})), (
            lambda state: run.finish(exit_code=int(state != "finished"))
        )

    return ThreadedSink("wandb", open_writer)


def tensorboard_sink(run_dir: Path, resumed_at: int | None) -> ThreadedSink:
    """TensorBoard event files in the run directory's folder `tensorboard`, under the same keys (it shows characters
    outside of its own alphabet as underscores). A resume hides what it abandoned: the steps after `resumed_at`."""

    def open_writer(say: Say) -> tuple[Write, Finish]:
        from tensorboardX import SummaryWriter

        purge = None if resumed_at is None else resumed_at + 1
        writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)

        def write(step: int, values: Mapping[str, float]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        return write, lambda state: writer.close()

    return ThreadedSink("tensorboard", open_writer)
