"""The endless Ray Data dataset between the prompts and the trainer: tickets → rollouts → environment → batches.

Four settings that are defaults elsewhere would deadlock a stream whose source waits for its consumer: prefetching
batches, shard locality, a batch size over one row, and dropping errored blocks.
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask
from ray.data._internal.execution import streaming_executor_state
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.data._internal.execution.metadata_fetcher import InlineMetadataFetcher
from ray.data.block import BlockMetadata

from app import admission
from app.batch import SHARE, Batch, BatchBuilder
from app.clock import Clock
from app.config import Config, EntryConfig, EnvironmentConfig
from app.policy import vocabulary_size
from app.prompts import PromptOrder, weight_at
from app.rollout import GROUP, SAMPLE, Rollout
from app.run_context import RunContext, answer
from app.weights import store
from environments.base import Prompt, Sample, encode_prompt
from environments.checks import clean
from environments.loader import load
from environments.pool import EnvironmentPool

METRICS_TIMEOUT_S = 60
GATE_TIMEOUT_S = 60
EMPTY_STEPS_LIMIT = 3
STAGE_CPUS = 0.01
IDLE_S = 0.5  # longest wait of the executor: what it does by the clock, such as noticing a dead actor, may be this late
GATHER_S = 0.004
OWN_CLOCK = Clock()

SCORED = pa.struct(
    [
        *SAMPLE,
        ("reward", pa.float64()),
        ("sample_metrics", pa.map_(pa.string(), pa.float64())),
        ("golden_answers", pa.map_(pa.string(), pa.string())),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("reward_start_s", pa.float64()),
        ("reward_end_s", pa.float64()),
    ]
)


class Prompts:
    """The groups of a run: `at(number)` is a row of `rollout.GROUP`."""

    def __init__(self, environments: Sequence[EnvironmentConfig], seed: int, prompts_per_step: int) -> None:
        self.labels = [entry.label for entry in environments]
        self.samples = [load(entry.name, entry.kwargs).samples("train") for entry in environments]
        self.order = PromptOrder(
            [len(samples) for samples in self.samples],
            lambda batch: [weight_at(entry, batch) for entry in environments],
            seed,
            prompts_per_step,
        )

    def at(self, group: int) -> dict[str, Any]:
        draw = self.order.at(group)
        return group_row(group, self.labels[draw.environment], self.samples[draw.environment][draw.sample])


def group_row(group: int, label: str, sample: Sample) -> dict[str, Any]:
    """A row of `rollout.GROUP` for an environment's sample."""
    return {
        "group_id": group,
        "env": label,
        "problem_id": sample.problem_id,
        "prompt": _storable(sample.prompt),
        "answer": json.dumps(sample.answer),
        "metadata": json.dumps(dict(sample.metadata)),
    }


def _storable(prompt: Prompt) -> str:
    """Column of a prompt. A text that no encoding has goes as a message, escaped: the sampler says what is wrong."""
    column = encode_prompt(prompt)
    return column if clean(column) == column else encode_prompt([{"role": "user", "content": str(prompt)}])


class Tickets(Datasource):
    """Endless source. Block i is a pure function of ticket i, so a retried read replays exactly."""

    def __init__(self, config: Config, namespace: str) -> None:
        self.config = config
        self.namespace = namespace

    def get_name(self) -> str:
        return "Tickets"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        config, namespace = self.config, self.namespace

        def read() -> Iterator[pa.Table]:
            gate = admission.gate(namespace)
            prompts = Prompts(config.environments, config.seed, config.prompts_per_step)
            epoch, _ = ray.get(gate.join.remote())
            index = 0
            while (ticket := ray.get(gate.admit.remote(epoch, index))) is not None:
                yield _ticket_row(epoch, ticket, prompts)
                index += 1

        return [ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))]


def _ticket_row(epoch: int, ticket: admission.Ticket, prompts: Prompts) -> pa.Table:
    return pa.table(
        {
            "ticket": pa.array([ticket.index], pa.int64()),
            "epoch": pa.array([epoch], pa.int64()),
            "version": pa.array([ticket.version], pa.int64()),
            "groups": pa.array([[prompts.at(group) for group in ticket.groups]], pa.list_(GROUP)),
        }
    )


class Environments:
    """Ray Data stage: applies each sample's environment, in killable processes of its own."""

    def __init__(self, environments: Sequence[EnvironmentConfig], context: RunContext) -> None:
        self.workers = reward_workers(environments, context.eos_token)
        self.clock = Clock(store(context.namespace))

    def __call__(self, batch: pa.Table) -> pa.Table:
        samples = batch["samples"][0].as_py()
        self.clock.refresh()
        scored = score(samples, self.workers, self.clock)
        return batch.set_column(batch.column_names.index("samples"), "samples", pa.array([scored], pa.list_(SCORED)))


def reward_workers(environments: Sequence[EntryConfig], eos_token: str) -> dict[str, EnvironmentPool]:
    """The reward processes of each environment, by label."""
    return {
        entry.label: EnvironmentPool(
            entry.name, entry.kwargs, limit_s=entry.reward_timeout_s, processes=entry.processes, eos_token=eos_token
        )
        for entry in environments
    }


def score(
    samples: list[dict[str, Any]], workers: dict[str, EnvironmentPool], clock: Clock = OWN_CLOCK
) -> list[dict[str, Any]]:
    """Rows of `SAMPLE` → rows of `SCORED`, in the same order. What did not finish is not scored."""
    for label, worker in workers.items():
        mine = [s for s in samples if s["env"] == label and s["error"] is None and s["finish"] != "abort"]
        if not mine:
            continue
        columns = ("prompt", "completion", "answer", "metadata", "state")
        table = pa.table({name: pa.array([s[name] for s in mine], pa.string()) for name in columns})
        for sample, result in zip(mine, worker.score(table).to_pylist(), strict=True):
            sample.update({k: v for k, v in result.items() if k not in columns})
            sample["sample_metrics"] = _own_metrics(sample)
            for name in ("reward_start_s", "reward_end_s"):
                sample[name] = clock.of(sample[name])
    return samples


def _own_metrics(sample: dict[str, Any]) -> list[tuple[str, float]]:
    """The environment's metrics, and of a conversation how often the chat template would have told it otherwise."""
    found = dict(sample["sample_metrics"])
    if sample["prefix_breaks"] is not None:
        found.setdefault("prefix_breaks", float(sample["prefix_breaks"]))
    return list(found.items())


class Batcher:
    """Ray Data stage: one stateful actor that emits one row a rank when a step is complete."""

    def __init__(self, config: Config, context: RunContext) -> None:
        self.config = config
        self.context = context
        self.gate = admission.gate(context.namespace)
        self.metrics = context.metrics()
        self.builder: BatchBuilder | None = None
        self.epoch = -1
        self.empty_steps = 0
        self.logged: ray.ObjectRef | None = None

    def __call__(self, batch: pa.Table) -> pa.Table:
        if self.builder is None:
            self._begin()
        assert self.builder is not None
        shares: list[dict[str, Any]] = []
        version = batch["version"][0].as_py()
        awaited = self._admitted_since if self.config.stragglers == "wait" else None
        for samples in _groups(batch["samples"][0].as_py()):
            if given_back := self.builder.add(samples, version):
                self.gate.give_back.remote(self.epoch, given_back)
            # After each group, not after each ticket: the next group belongs to the next step.
            while self.builder.complete(awaited):
                shares += self._close(self.builder.take())
        return pa.Table.from_pylist(shares, schema=SHARE)

    def _begin(self) -> None:
        self.epoch, done = ray.get(self.gate.join.remote())
        if not answer(self.gate.register_batcher.remote(self.epoch), GATE_TIMEOUT_S, "the admission actor"):
            raise RuntimeError("the batcher was restarted: the groups in its memory are lost, so the epoch ends")
        vocab_size = vocabulary_size(self.context.model) if self.config.filters.gibberish else None
        self.builder = BatchBuilder(self.config, done + 1, self.config.num_workers, vocab_size)

    def _admitted_since(self, version: int) -> list[int]:
        return answer(self.gate.admitted_since.remote(version), GATE_TIMEOUT_S, "the admission actor")

    def _close(self, batch: Batch) -> list[dict[str, Any]]:
        """A complete step: its rows go to the metrics actor, its shares to the ranks."""
        self._log(batch.step, batch.rows)
        self._check_progress(batch.rows)
        return batch.shares

    def _log(self, step: int, rows: pa.Table) -> None:
        """Sends the step's rows; the message before must have been stored by then, else the actor is stuck."""
        if self.logged is not None:
            answer(self.logged, METRICS_TIMEOUT_S, "the metrics actor")
        self.logged = self.metrics.log_samples.remote(self.context.source("batcher"), step, rows)

    def _check_progress(self, rows: pa.Table) -> None:
        outcomes = rows["outcome"].to_pylist()
        self.empty_steps = 0 if "trained" in outcomes else self.empty_steps + 1
        if self.empty_steps >= EMPTY_STEPS_LIMIT:
            reasons = [r for r in rows["outcome_reason"].to_pylist() if r is not None]
            common = max(set(reasons), key=reasons.count)
            raise RuntimeError(
                f"no sample could be trained in {self.empty_steps} steps; the most common reason: {common}"
            )


def _groups(samples: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = {}
    for sample in samples:
        groups.setdefault(sample["group_id"], []).append(sample)
    return list(groups.values())


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
