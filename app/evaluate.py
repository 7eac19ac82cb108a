"""Evals: held-out prompts, sampled by the run's engines with the weights of the moment, scored like training."""

import asyncio
from typing import Any

import ray

from app.batch import metrics_row
from app.config import Config, EnvironmentConfig
from app.engine import Sampling
from app.eval_metrics import eval_metrics
from app.rollout import Sampler
from app.run_context import RunContext
from app.stream import group_row, reward_workers, score
from environments.loader import load
from metrics.schema import samples_table

TIMEOUT_S = 1800
ACTOR_NAME = "evaluator"


@ray.remote(num_cpus=0)
class Evaluator:
    """Evaluates on request. An actor, so that the trainer neither loads a tokenizer nor runs environments."""

    def __init__(self, config: Config, context: RunContext) -> None:
        sampling = Sampling(
            n=config.eval.completions,
            max_tokens=config.max_tokens,
            temperature=config.eval.temperature,
            top_p=config.top_p,
            stop_token_ids=(),
        )
        self.config = config
        self.context = context
        self.sampler = Sampler(context.run_id, context.model, sampling, config.max_prompt_tokens)
        self.workers = reward_workers(config.environments, self.sampler.eos_token)
        self.groups = _held_out(config)
        self.maxima = {entry.label: _maxima(entry) for entry in config.environments}

    async def run(self, step: int) -> dict[str, float]:
        """Evaluates the weights of `step` and returns the metrics; the rows go to the metrics actor."""
        drawn = await asyncio.gather(
            *[self.sampler.draw(g, f"eval/{step}/{g['group_id']}", step, self.config.seed) for g in self.groups]
        )
        samples = [sample for group in drawn for sample in group]
        scored = await asyncio.to_thread(score, samples, self.workers)
        values = {
            key: value
            for label in self.workers
            for key, value in eval_metrics(label, [s for s in scored if s["env"] == label], self.maxima[label]).items()
        }
        rows = samples_table(metrics_row(sample | {"outcome": "eval"}, step) for sample in scored)
        await self.context.metrics().log_eval.remote(self.context.source("eval"), step, step, values, rows)
        return values


def _held_out(config: Config) -> list[dict[str, Any]]:
    """The same prompts at every eval: the first ones of each environment's eval split."""
    groups: list[dict[str, Any]] = []
    for entry in config.environments:
        samples = load(entry.name, entry.kwargs).samples("eval")[: config.eval.num_prompts]
        groups += [group_row(len(groups) + i, entry.label, sample) for i, sample in enumerate(samples)]
    return groups


def _maxima(entry: EnvironmentConfig) -> dict[str, float]:
    """The value of each metric that counts as solved: its declared maximum."""
    ranges = load(entry.name, entry.kwargs).metrics_ranges
    declared = {name: bounds["max"] for name, bounds in ranges.items() if bounds.get("max") is not None}
    return declared if entry.reward_max is None else declared | {"reward": entry.reward_max}
