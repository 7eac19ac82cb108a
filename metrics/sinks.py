"""Places besides the run directory that get a run's numbers. A sink never stops or delays a run; its trouble is
shown."""

import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

CAPACITY = 10_000
CLOSE_TIMEOUT_S = 60.0


class Sink(Protocol):
    """Takes scalars by step. `trouble` says, once, what went wrong since it was last asked."""

    name: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def trouble(self) -> str | None: ...

    def close(self, state: str) -> None: ...


class ThreadedSink:
    """A sink that works in a thread of its own: a slow or failing service costs the caller nothing.

    `open_writer` is called in the thread and returns (write, finish).
    """

    def __init__(
        self,
        name: str,
        open_writer: Callable[[], tuple[Callable[[int, Mapping[str, float]], None], Callable[[str], None]]],
    ) -> None:
        self.name = name
        self.open_writer = open_writer
        self.waiting: queue.Queue[tuple[int, dict[str, float]] | str] = queue.Queue(CAPACITY)
        self.problem: str | None = None
        self.num_dropped = 0
        self.thread = threading.Thread(target=self.work, name=f"metrics to {name}", daemon=True)
        self.thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        try:
            self.waiting.put_nowait((step, dict(values)))
        except queue.Full:
            self.num_dropped += 1

    def work(self) -> None:
        """The one border where a foreign service may fail in any way. A failure becomes words for the checks."""
        write = finish = None
        while True:
            item = self.waiting.get()
            try:
                if write is None or finish is None:
                    write, finish = self.open_writer()
                if isinstance(item, str):
                    finish(item)
                    return
                write(*item)
            except Exception as error:  # noqa: BLE001 - a service may raise anything, and may not stop the run
                what = f"{type(error).__name__}: {str(error)[:300]}"
                self.problem = f"{self.name}: {what}; the run goes on, its own record is complete"
                if isinstance(item, str):
                    return

    def trouble(self) -> str | None:
        problem, self.problem = self.problem, None
        if self.num_dropped:
            problem = f"{problem or self.name}: {self.num_dropped} rows were dropped because {CAPACITY} are waiting"
        return problem

    def close(self, state: str) -> None:
        self.waiting.put(state)
        self.thread.join(CLOSE_TIMEOUT_S)
        if self.thread.is_alive():
            self.problem = f"{self.name}: did not finish within {CLOSE_TIMEOUT_S:.0f} s"


def wandb_sink(run_dir: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> ThreadedSink:
    """Weights & Biases: the same keys, `step` as the explicit axis of every chart, one W&B run over all attempts.

    settings: project, mode ("online", "offline", "disabled"), entity. Offline needs neither account nor network.
    """

    def open_writer() -> tuple[Callable[[int, Mapping[str, float]], None], Callable[[str], None]]:
        import wandb

        run = wandb.init(
            project=settings.get("project") or "telescope",
            entity=settings.get("entity"),
            mode=settings.get("mode") or "offline",
            id=run_dir.name,
            name=run_dir.name,
            dir=str(run_dir),
            resume="allow",
            config=dict(config),
            settings=wandb.Settings(init_timeout=60, silent=True, console="off"),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return (lambda step, values: run.log({**values, "step": step})), (
            lambda state: run.finish(exit_code=int(state != "finished"))
        )

    return ThreadedSink("wandb", open_writer)
