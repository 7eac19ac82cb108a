"""The metrics actor of a run: MetricsCore behind a named, restartable Ray actor.

When Ray restarts it, it opens the store again and knows which messages it has; callers' retried messages are ignored
when their rows are there. Ray is imported inside the functions: reading metrics never needs it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from metrics.core import MetricsCore
from metrics.sinks import tensorboard_sink, wandb_sink

AFTER_TIMEOUT_S = 30.0
"""How long log_step waits for the samples it was told to wait for. Then it goes on, and the step says so."""
LOCK_WAIT_S = 20.0
"""How long a restarted actor waits for the operating system to end its predecessor."""


class MetricsActor:
    """Async only so that log_step can wait for samples; all work is done in turn, on one thread."""

    def __init__(
        self,
        run_dir: str,
        settings: dict[str, Any],
        wandb: dict[str, Any] | None = None,
        tensorboard: bool = False,
        lock_wait_s: float = 0.0,
    ) -> None:
        self.core = MetricsCore(Path(run_dir), lock_wait_s=lock_wait_s, **settings)
        self.arrived = asyncio.Condition()
        if wandb:
            self.core.sinks.append(wandb_sink(Path(run_dir), wandb, settings["config"]))
        if tensorboard:
            self.core.sinks.append(tensorboard_sink(Path(run_dir), self.core.resumed_at))

    async def log_samples(self, source: str, seq: int, rows: pa.Table) -> None:
        """Rows of schema.SAMPLES. Durable when it returns."""
        self.core.log_samples(source, seq, rows)
        async with self.arrived:
            self.arrived.notify_all()

    async def log_step(
        self,
        source: str,
        seq: int,
        step: int,
        values: dict[str, Any],
        spans: pa.Table,
        started: int,
        after: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """The step's full row, and under `checks` the result of every self-check."""
        missing = None if after is None or await self.has_come(after) else after
        return self.core.log_step(source, seq, step, values, spans, started, missing)

    async def log_eval(
        self, source: str, seq: int, step: int, values: dict[str, Any], rows: pa.Table
    ) -> dict[str, float]:
        """Rows of schema.SAMPLES with outcome `eval`. Step 0 is before training."""
        return self.core.log_eval(source, seq, step, values, rows)

    async def close(self, state: str) -> None:
        """Ends the attempt and releases the run."""
        self.core.close(state)

    async def has_come(self, message: tuple[str, int]) -> bool:
        try:
            async with asyncio.timeout(AFTER_TIMEOUT_S), self.arrived:
                await self.arrived.wait_for(lambda: self.core.has_samples(*message))
        except TimeoutError:
            return False
        return True

    async def ready(self) -> bool:
        return True


def start(
    run_dir: Path,
    *,
    name: str,
    namespace: str,
    attempt: int,
    resume_step: int,
    config: Mapping[str, Any],
    environments: Sequence[Mapping[str, Any]],
    num_slots: int,
    wandb: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
) -> Any:
    """Start the run's actor and wait until it has opened the run. An error of the store is raised here."""
    import ray

    settings = {
        "attempt": attempt,
        "resume_step": resume_step,
        "config": dict(config),
        "environments": [dict(one) for one in environments],
        "num_slots": num_slots,
    }
    remote: Any = ray.remote(MetricsActor).options(
        name=name, namespace=namespace, num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=64
    )
    handle = remote.remote(str(run_dir), settings, dict(wandb) if wandb else None, tensorboard, LOCK_WAIT_S)
    ray.get(handle.ready.remote(), timeout=AFTER_TIMEOUT_S + LOCK_WAIT_S)
    return handle
