"""Evals: held-out prompts, sampled by the run's engines with the weights of the moment, scored like training."""

import asyncio
from typing import Any

import ray

from app.batch import metrics_row
from app.config import Config
from app.run_context import RunContext
from app.sampler import Sampler, samplings
from app.stream import group_row, reward_workers, score
from environments.loader import load
from metrics.schema import samples_table

TIMEOUT_S = 1800
ACTOR_NAME = "evaluator"


@ray.remote(num_cpus=0)
class Evaluator:
    """Evaluates on request. An actor, so that the trainer neither loads a tokenizer nor runs environments."""

    def __init__(self, config: Config, context: RunContext) -> None:
        self.config = config
        self.context = context
        drawing = samplings(config, config.eval.completions, config.eval.temperature)
        self.sampler = Sampler(context.run_id, context.model, config.environments, drawing, config.max_prompt_tokens)
        self.workers = reward_workers(config.environments, context.eos_token)
        self.groups = _held_out(config)

    async def run(self, step: int) -> dict[str, float]:
        """Evaluates the weights of `step`; the metrics actor stores the rows and makes the eval/* metrics of them."""
        drawn = await asyncio.gather(
            *[self.sampler.draw(g, f"eval/{step}/{g['group_id']}", step, self.config.seed) for g in self.groups]
        )
        samples = [sample for group in drawn for sample in group]
        scored = await asyncio.to_thread(score, samples, self.workers)
        rows = samples_table(metrics_row(sample | {"outcome": "eval"}, step) for sample in scored)
        return await self.context.metrics().log_eval.remote(self.context.source("eval"), step, step, {}, rows)


def _held_out(config: Config) -> list[dict[str, Any]]:
    """The same prompts at every eval: the first ones of each environment's eval split."""
    groups: list[dict[str, Any]] = []
    for entry in config.environments:
        samples = load(entry.name, entry.kwargs).samples("eval")[: config.eval.num_prompts]
        groups += [group_row(len(groups) + i, entry.label, sample) for i, sample in enumerate(samples)]
    return groups
