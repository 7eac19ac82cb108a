"""Evals: held-out prompts, sampled by the run's engines with the weights of one version, scored like training."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import ray

from app.batch import metrics_row
from app.clock import Clock
from app.config import Config, EvalConfig
from app.conversation import NO_VERSION
from app.run_context import RunContext, answered
from app.sampler import Sampler, sampling_of
from app.scoring import reward_workers, score
from app.tickets import group_row
from app.weights import store
from environments.loader import load
from metrics.schema import samples_table

TIMEOUT_S = 1800
METRICS_TIMEOUT_S = 60
ACTOR_NAME = "evaluator"


class WeightsMoved(RuntimeError):
    """The weights of an eval were not one version from its beginning to its end: it says nothing of any of them."""


class Evaluated(NamedTuple):
    """Rows of `metrics.schema.SAMPLES`, the eval/* values that do not follow from them, and when it was."""

    rows: pa.Table
    values: dict[str, float]
    start_s: float
    end_s: float


class Evals:
    """The evals of a configuration. Prompts are the same every time, and so are the seeds of their completions."""

    def __init__(self, config: Config, run_id: str, model: str, eos_token: str) -> None:
        self.config = config
        drawing = {
            entry.label: sampling_of(config, entry, entry.completions, entry.temperature) for entry in config.evals
        }
        self.sampler = Sampler(run_id, model, config.evals, drawing, config.max_prompt_tokens)
        self.workers = reward_workers(config.evals, eos_token)
        self.groups = {entry.label: _held_out(entry) for entry in config.evals}

    async def evaluate(self, step: int, entries: Sequence[EvalConfig]) -> Evaluated:
        """Draws and scores completions with the weights of `step`. Raises WeightsMoved when others answered, too."""
        await self.sampler.clock.refresh_async()
        start_s = self.sampler.clock.now()
        groups = [group for entry in entries for group in self.groups[entry.label]]
        drawn = await asyncio.gather(*[self._draw(group, step) for group in groups])
        samples = [sample for group in drawn for sample in group]
        version = _one_version(samples, step)
        scored = await asyncio.to_thread(score, samples, self.workers, self.sampler.clock)
        rows = samples_table(metrics_row(sample | {"outcome": "eval"}, step) for sample in scored)
        end_s = self.sampler.clock.now()
        values = {f"eval/{entry.label}/weights_version": float(version) for entry in entries}
        return Evaluated(rows, values, start_s, end_s)

    def close(self) -> None:
        """Ends the environments' processes."""
        for pool in [*self.workers.values(), *self.sampler.partners.values()]:
            pool.close()

    async def _draw(self, group: dict[str, Any], step: int) -> list[dict[str, Any]]:
        key = f"eval/{group['env']}/{step}/{group['group_id']}"
        return await self.sampler.draw(group, key, step, self.config.seed)


@ray.remote(num_cpus=0)
class Evaluator:
    """Evaluates on request. An actor, so that the trainer neither loads a tokenizer nor runs environments."""

    def __init__(self, config: Config, context: RunContext) -> None:
        self.config, self.context = config, context
        self.evals = Evals(config, context.run_id, context.model, context.eos_token)
        self.evals.sampler.clock = Clock(store(context.namespace))

    async def run(self, step: int) -> tuple[float, float]:
        """Evaluates the weights of `step`; the metrics actor stores the rows and makes the eval/* metrics of them.

        Returns when it began and ended, on the run's clock.
        """
        done = await self.evals.evaluate(step, due(self.config, step))
        log = self.context.metrics().log_eval
        logged = log.remote(self.context.source("eval"), step, step, done.values, done.rows)
        await answered(logged, METRICS_TIMEOUT_S, "the metrics actor")
        return done.start_s, done.end_s


def due(config: Config, step: int) -> list[EvalConfig]:
    """The evals of the weights after `step`: before training, every so many steps, and after the last."""
    return [entry for entry in config.evals if step % entry.eval_every == 0 or step == config.steps]


def _held_out(entry: EvalConfig) -> list[dict[str, Any]]:
    samples = load(entry.name, entry.kwargs).samples("eval")[: entry.num_samples]
    return [group_row(number, entry.label, sample) for number, sample in enumerate(samples)]


def _one_version(samples: Sequence[dict[str, Any]], step: int) -> int:
    """The version that sampled every token; `step` where there is none."""
    found = {version for sample in samples for version in sample["versions"]} - {NO_VERSION}
    if found - {step}:
        raise WeightsMoved(
            f"the eval of step {step} was sampled with the weights of versions {min(found)} to {max(found)}; "
            "nothing may be pushed to the engines while it draws"
        )
    return step
