"""The source of the stream: tickets, each with the prompts of a few groups, as fast as admission allows."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from app import admission
from app.columns import GROUP
from app.config import Config, EnvironmentConfig
from app.prompts import PromptOrder, weight_at
from environments.base import Prompt, Sample, encode_prompt
from environments.checks import clean
from environments.loader import load


class Prompts:
    """The groups of a run: `at(number)` is a row of `columns.GROUP`."""

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
    """A row of `columns.GROUP` for an environment's sample."""
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
                yield ticket_row(epoch, ticket, prompts)
                index += 1

        return [ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))]


def ticket_row(epoch: int, ticket: admission.Ticket, prompts: Prompts) -> pa.Table:
    return pa.table(
        {
            "ticket": pa.array([ticket.index], pa.int64()),
            "epoch": pa.array([epoch], pa.int64()),
            "version": pa.array([ticket.version], pa.int64()),
            "groups": pa.array([[prompts.at(group) for group in ticket.groups]], pa.list_(GROUP)),
        }
    )
