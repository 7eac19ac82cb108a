"""The reward stage of the stream, and what evals share with it: each sample meets its environment."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from app.clock import Clock
from app.columns import SCORED, dicts, replaced
from app.config import EntryConfig, EnvironmentConfig
from app.run_context import RunContext
from app.weights import store
from environments.batch import REWARD_COLUMNS
from environments.pool import EnvironmentPool

OWN_CLOCK = Clock()
OF_REWARDS = ("prompt", "completion", "answer", "metadata", "state")
"""What the environments' processes are given."""
JUDGED = (*OF_REWARDS, "env", "finish", "error", "prefix_breaks")
"""What scoring reads of a sample."""


class Environments:
    """Ray Data stage: applies each sample's environment, in killable processes of its own."""

    def __init__(self, environments: Sequence[EnvironmentConfig], context: RunContext) -> None:
        self.workers = reward_workers(environments, context.eos_token)
        self.clock = Clock(store(context.namespace))

    def __call__(self, batch: pa.Table) -> pa.Table:
        samples = batch["samples"][0].values
        self.clock.refresh()
        rows = score(dicts(samples, JUDGED), self.workers, self.clock)
        scored = replaced(samples, SCORED, rows, REWARD_COLUMNS.names)
        column = pa.ListArray.from_arrays(pa.array([0, len(scored)], pa.int32()), scored)
        return batch.set_column(batch.column_names.index("samples"), "samples", column)


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
        table = pa.table({name: pa.array([s[name] for s in mine], pa.string()) for name in OF_REWARDS})
        for sample, result in zip(mine, worker.score(table).to_pylist(), strict=True):
            sample.update({k: v for k, v in result.items() if k not in OF_REWARDS})
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
