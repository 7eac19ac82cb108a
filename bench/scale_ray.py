"""What Ray adds to each message: the real stream, Serve, admission and metrics actor, with engines that only wait.

Everything of a run but vLLM and the trainer's arithmetic, on a Ray of its own: `python -m bench.scale ray`.
"""

import asyncio
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import ray
from ray import serve

from app import local_ray
from app.admission import GATE_NAME, Admission, Cursor
from app.config import Config
from app.embedded import make_tokenizer
from app.engine import Completion, Sampling
from app.run_context import RunContext
from app.run_dir import application_of
from app.trainer_data import read_share
from app.weights import STORE_NAME, WeightStore
from bench.family import Family
from bench.simulation import Load
from metrics import actor as metrics_actor
from metrics.schema import spans_table

SMALL = {"engines": 2, "slots": 256, "prompts_per_step": 200, "groups_per_ticket": 25, "mean_tokens": 64}
SMALL |= {"max_tokens": 64, "ranks": 1, "steps": 12, "max_async": 1, "discards": False}
WARM_UP_STEPS = 1
PARTS = ("Rollout", "Environments", "Batcher", "ServeReplica", "Admission", "MetricsActor", "gcs_server", "raylet")
ME, OTHERS = "this process: Ray Data's executor, trainer", "others: rewards, Serve's controller, agents of Ray"
TIMEOUT_S = 120


@serve.deployment(name="engine", max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0.01})
class WaitingEngine:
    """Answers after a while, with as many tokens as it may."""

    async def generate(self, key: str, prompt_ids: list[int], sampling: Sampling, min_version: int) -> list[Completion]:
        await asyncio.sleep(0.5)
        now, n = time.monotonic(), sampling.max_tokens
        tokens, versions = tuple(5 + i % 80 for i in range(n)), (min_version,) * n
        one = Completion(tokens, (-1.0,) * n, versions, "length", now - 0.5, now, "engine")
        return [one] * sampling.n


def report(overrides: dict[str, str]) -> None:
    """Prints CPU seconds a step by process."""
    load = Load(**(SMALL | {key: int(value) for key, value in overrides.items()}))
    if load.steps < WARM_UP_STEPS + 2:
        raise SystemExit(f"steps={load.steps}: at least {WARM_UP_STEPS + 2}; first and last are not measured")
    os.environ.update(local_ray.ENVIRONMENT)
    with local_ray.local_ray(num_cpus=2) as cluster, tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            spent, wall_s, names = _measured(load, Path(folder))
        finally:
            ray.shutdown()
    steps = load.steps - 1 - WARM_UP_STEPS
    tickets = load.prompts_per_step / load.groups_per_ticket
    print(
        f"{load.prompts_per_step} groups of {load.group_size} in {tickets:g} tickets a step, {load.max_tokens} tokens"
    )
    print(f"a step took {wall_s / steps:.2f} s; CPU seconds a step, and milliseconds a group:")
    rows: defaultdict[str, float] = defaultdict(float)
    for key, cpu_s in spent.items():
        part = ME if key[0] == os.getpid() else next((part for part in PARTS if part in names[key]), OTHERS)
        rows[part] += cpu_s / steps
    rows["all"] = sum(rows.values())
    for name, cpu_s in sorted(rows.items(), key=lambda row: -row[1]):
        print(f"  {name:<52} {cpu_s:7.3f} {1000 * cpu_s / load.prompts_per_step:9.3f}")


def _measured(load: Load, folder: Path) -> tuple[dict[Any, float], float, dict[Any, str]]:
    """CPU seconds by process after the warm-up, wall seconds, names of processes."""
    config, context = load.config(), RunContext("bench-scale", folder, 1, str(folder / "model"))
    make_tokenizer().save_pretrained(folder / "model")
    actors = _actors(config, context)
    serve.start(proxy_location="Disabled")
    router = serve.config.RequestRouterConfig(
        request_router_class="ray.serve.experimental.round_robin_router.RoundRobinRouter"
    )
    deployment = WaitingEngine.options(num_replicas=load.engines, request_router_config=router)
    serve.run(deployment.bind(), name=application_of(context.run_id), route_prefix=None)
    family = Family()
    readings = []
    for step in _steps(config, context, actors, load):
        if step in (WARM_UP_STEPS, load.steps - 1):  # the stages end with the last step
            family.cpu_s()
            readings.append((time.monotonic(), family.by_process()))
    (since, before), (until, after) = readings
    return {key: cpu_s - before.get(key, 0.0) for key, cpu_s in after.items()}, until - since, family.names


def _actors(config: Config, context: RunContext) -> dict[str, Any]:
    pace = (config.prompts_per_step, config.max_async_rollout, config.steps, config.groups_per_ticket)
    named: Any = Admission
    gate = named.options(name=GATE_NAME, namespace=context.namespace).remote(*pace)
    weights: Any = WeightStore
    store = weights.options(name=STORE_NAME, namespace=context.namespace).remote()
    metrics = metrics_actor.start(
        context.run_dir,
        name="metrics",
        namespace=context.namespace,
        attempt=1,
        resume_step=0,
        config=config.model_dump(),
        environments=[],
        num_slots=config.num_engines * config.engine.max_num_seqs,
    )
    return {"gate": gate, "metrics": metrics, "store": store}


def _steps(config: Config, context: RunContext, actors: dict[str, Any], load: Load) -> Any:
    """Consumes the stream as rank 0 does, and says each step that is done."""
    from app.stream import dataset

    gate, metrics = actors["gate"], actors["metrics"]
    tables = dataset(config, context).iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow")
    ray.get(gate.begin.remote(0, Cursor()), timeout=TIMEOUT_S)
    for table in (table for table in tables if table.num_rows):
        data = read_share(table)
        started = ray.get(gate.step_done.remote(data.step), timeout=TIMEOUT_S)
        logged = metrics.log_step.remote(
            "trainer/1",
            data.step,
            step=data.step,
            values={"entropy": 1.0, "tokens/trained": 1.0},
            spans=spans_table([]),
            started=started * load.group_size,
            after=("batcher/1", data.samples_message),
        )
        ray.get(logged, timeout=TIMEOUT_S)
        yield data.step
        if data.step == config.steps:
            return
