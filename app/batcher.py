"""The last stage of the stream: scored samples become the batch of a step."""

from typing import Any

import pyarrow as pa
import ray

from app import admission
from app.batch import SHARE, Batch, BatchBuilder
from app.columns import dicts
from app.config import Config
from app.policy import vocabulary_size
from app.run_context import RunContext, answer

METRICS_TIMEOUT_S = 60
GATE_TIMEOUT_S = 60
EMPTY_STEPS_LIMIT = 3


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
        for samples in _groups(dicts(batch["samples"][0].values)):
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
        ranks, shares_prompts = self.config.num_workers, self.context.shares_prompts
        self.builder = BatchBuilder(self.config, done + 1, ranks, vocab_size, shares_prompts)

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
        if not rows.num_rows:  # all its places were lost in steps before, which said so
            return
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
