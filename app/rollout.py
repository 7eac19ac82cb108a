"""The rollout stage: a Ray Data actor that turns tickets into completions, many at a time.

A completion that can no longer be trained is aborted in the engine, so that its slot is free at once.
"""

import asyncio
from typing import Any

import pyarrow as pa

from app import admission
from app.clock import Clock
from app.columns import SAMPLE
from app.config import Config
from app.run_context import RunContext
from app.sampler import Sampler, samplings
from app.weights import store


class Rollout:
    """Ray Data stage: one row a ticket in (`groups`), one row a ticket out (`samples`)."""

    def __init__(self, config: Config, context: RunContext, seed: int | None) -> None:
        drawing = samplings(config, config.group_size)
        self.sampler = Sampler(context.run_id, context.model, config.environments, drawing, config.max_prompt_tokens)
        self.sampler.clock = Clock(store(context.namespace))
        self.gate = admission.gate(context.namespace)
        self.max_off_policy_steps = config.max_off_policy_steps
        self.seed = seed
        self.done = -1
        self.watching: asyncio.Task | None = None
        self.running: dict[str, int] = {}  # key of a group → weights version when it was begun

    async def __call__(self, batch: pa.Table) -> pa.Table:
        if self.watching is None:
            self.watching = asyncio.get_running_loop().create_task(self._watch())
        elif self.watching.done():
            self.watching.result()  # raises what ended it: without it nothing would be aborted any more
        await self.sampler.clock.refresh_async()
        row = batch.to_pylist()[0]
        self.done = max(self.done, row["version"])  # the gate may not have told the watch yet
        drawn = await asyncio.gather(*[self._group(group, row["epoch"], row["ticket"]) for group in row["groups"]])
        return _row(row, [sample for samples in drawn for sample in samples])

    async def _group(self, group: dict[str, Any], epoch: int, ticket: int) -> list[dict[str, Any]]:
        key = f"{epoch}/{ticket}/{group['group_id']}"
        self.running[key] = self.done
        try:
            return await self.sampler.draw(group, key, self.done, self.seed)
        finally:
            del self.running[key]

    async def _watch(self) -> None:
        """Aborts what has become too old to be trained, after each step of the trainer."""
        while True:
            self.done = max(self.done, await self.gate.done_after.remote(self.done))
            oldest = self.done - self.max_off_policy_steps
            stale = [key for key, version in self.running.items() if version < oldest]
            if stale:
                await self.sampler.abort(stale)


def _row(ticket: dict[str, Any], samples: list[dict[str, Any]]) -> pa.Table:
    """One row: Ray Data cuts a block of several rows into one block a row, so a ticket stays one row."""
    return pa.table(
        {
            "ticket": pa.array([ticket["ticket"]], pa.int64()),
            "epoch": pa.array([ticket["epoch"]], pa.int64()),
            "version": pa.array([ticket["version"]], pa.int64()),
            "samples": pa.array([samples], pa.list_(SAMPLE)),
        }
    )
