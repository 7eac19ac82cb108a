"""What the vLLM engines did between two pushes: sums over their steps, divided once."""

from collections.abc import Mapping
from typing import Any

Counts = dict[str, float]
MEANS = ("running", "waiting", "kv_cache")
NOTHING: Counts = dict.fromkeys(("steps", *MEANS, "prompt_tokens", "cached_tokens", "preemptions"), 0.0)


def stat_logger(counts: Counts) -> type:
    """A logger for vLLM that adds its statistics up in `counts`, one engine step at a time."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class Tally(PrometheusStatLogger):
        """Of this kind because vLLM otherwise adds its own beside it, with dozens of histograms a step."""

        def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                cache = scheduler_stats.prefix_cache_stats
                counts["steps"] += 1
                counts["running"] += scheduler_stats.num_running_reqs
                counts["waiting"] += scheduler_stats.num_waiting_reqs
                counts["kv_cache"] += scheduler_stats.kv_cache_usage
                counts["prompt_tokens"] += cache.queries
                counts["cached_tokens"] += cache.hits
            if iteration_stats is not None:
                counts["preemptions"] += iteration_stats.num_preempted_reqs

        def log_engine_initialized(self) -> None:
            pass

        def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
            pass

    return Tally


def engine_metrics(now: Mapping[str, Counts], before: Mapping[str, Counts]) -> dict[str, float]:
    """engine/… between two readings of the counts of each engine; an engine that came meanwhile began at nothing."""
    sums = {key: sum(now[name][key] - before.get(name, NOTHING)[key] for name in now) for key in NOTHING}
    if not sums["steps"]:
        return {}
    values = {f"engine/{key}": sums[key] / sums["steps"] for key in MEANS}
    values |= {f"engine/{key}": sums[key] for key in ("steps", "preemptions")}
    if sums["prompt_tokens"]:
        values["engine/prefix_cache_hits"] = sums["cached_tokens"] / sums["prompt_tokens"]
    return values
