"""The endless Ray Data dataset between the prompts and the trainer: tickets → rollouts → environment → batches.

Four settings that are defaults elsewhere would deadlock a stream whose source waits for its consumer: prefetching
batches, shard locality, a batch size over one row, and dropping errored blocks. Each stage is a module of its own:
its process imports no more than it needs.
"""

import time
from typing import Any

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext
from ray.data._internal.execution import streaming_executor_state
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.metadata_fetcher import InlineMetadataFetcher

from app.batcher import Batcher
from app.config import Config
from app.rollout import Rollout
from app.run_context import RunContext
from app.scoring import Environments
from app.tickets import Tickets

STAGE_CPUS = 0.01
IDLE_S = 0.5  # longest wait of the executor: what it does by the clock, such as noticing a dead actor, may be this late
GATHER_S = 0.004


def dataset(config: Config, context: RunContext) -> ray.data.Dataset:
    """The stream of one epoch; it executes where it is consumed."""
    data = DataContext.get_current()
    data.target_max_block_size = 1  # each ticket leaves at once, as a block of one row
    data.enable_progress_bars = False
    data.print_on_execution_start = False
    data.execution_no_progress_timeout_s = -1  # a gated stream may wait
    data.issue_detectors_config.detectors = []
    data.custom_execution_callback_classes = [EagerWait]
    in_flight = 2 + config.prompts_per_step * (config.max_async_rollout + 1)
    seed = config.seed if config.max_async_rollout == 0 else None
    stages: list[tuple[type, tuple[Any, ...], int | None]] = [
        (Rollout, (config, context, seed), in_flight),
        (Environments, (config.environments, context), None),
        (Batcher, (config, context), None),
    ]
    tickets = ray.data.read_datasource(Tickets(config, context.namespace), num_cpus=STAGE_CPUS, override_num_blocks=1)
    for number, (stage, arguments, calls) in enumerate(stages, start=2):
        pool = ActorPoolStrategy(size=1, max_tasks_in_flight_per_actor=in_flight, max_concurrent_calls_per_actor=calls)
        tickets = tickets.map_batches(
            stage,
            fn_constructor_args=arguments,
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=number * STAGE_CPUS,  # stages that ask for different CPUs are not fused into one
            compute=pool,
        )
    return tickets


class EagerWait(ExecutionCallback):
    """Moves a block on as soon as it is there, in the process that runs Ray Data's executor.

    By itself the executor waits up to 100 ms for ALL running tasks before it looks, and an endless stream always has
    one running: each hop would cost 100 to 200 ms, and a shorter wait costs CPU all the time. Its thread for metadata
    polls as well, and is left out: ours are small.
    """

    def before_execution_starts(self, executor: Any) -> None:
        executor._metadata_fetcher = InlineMetadataFetcher()
        streaming_executor_state.ray = _EagerRay(ray)  # type: ignore[assignment]

    def on_execution_step(self, executor: Any) -> None:
        """Takes what the step's own dispatch has made: no task runs for it, so the next wait would not end with it."""
        for operator, state in executor._topology.items():
            while operator.has_next():
                state.add_output(operator.get_next())


class _EagerRay:
    """The module `ray`, but a wait ends when the first task has something, and takes what comes right after with it."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def wait(self, tasks: list[Any], *, num_returns: int, timeout: float, fetch_local: bool) -> tuple[list, list]:
        if not self.module.wait(tasks, num_returns=1, timeout=IDLE_S, fetch_local=fetch_local)[0]:
            return [], tasks
        time.sleep(GATHER_S)  # tasks come in bursts; and a ready one that may not be read yet must not spin
        return self.module.wait(tasks, num_returns=num_returns, timeout=0, fetch_local=fetch_local)
