"""What a step costs: CPU seconds of ALL processes of a run, and wall seconds, beside the two halves done alone.

    python -m bench.loop [--steps 20] [key=value …]

(a) vLLM alone on the step's requests, (b) a plain model's forward, backward and optimiser on its tokens, (c) the whole
system; what a push of the weights moves a second, beside a copy in memory. The load: 16 prompts × 8 completions of up
to 64 tokens, all in one ticket; the embedded 3M model in float32, one trainer process with one thread, sampling and
training in turn.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from app import local_ray
from app.config import from_dict, load
from app.jobs import Jobs, Run
from app.policy import prepare
from app.run_dir import FINAL
from bench.family import Family

WARM_UP_STEPS = 5
CONFIG: dict[str, Any] = {
    "name": "bench-loop",
    "model": "embedded",
    "environments": [{"name": "bench.digits:Digits"}],
    "prompts_per_step": 16,
    "group_size": 8,
    "groups_per_ticket": 16,
    "max_prompt_tokens": 24,
    "max_tokens": 64,
    "seq_len": 2048,
    "learning_rate": 1e-7,  # a policy that learns ends earlier or later: no two runs would have the same load
    "max_async_rollout": 0,
    "discard_group_zero_advantage": False,
}


@dataclass
class Reading:
    """CPU seconds of the cluster's processes when a step was first seen done."""

    step: int
    wall_s: float
    cpu_s: float
    by_process: dict[tuple[int, float], float]
    names: dict[tuple[int, float], str]


@dataclass
class Cost:
    """CPU and wall seconds a step, over the steps after the warm-up."""

    cpu_s: float
    wall_s: float


def measure(steps: int, overrides: list[str]) -> tuple[list[Reading], Run]:
    """Runs the load and reads the cluster's CPU time as steps are done. Whoever looks is not counted."""
    config = from_dict(CONFIG | {"steps": steps}, overrides)
    os.environ.update(local_ray.ENVIRONMENT)
    family, readings = Family(with_me=False), []
    with local_ray.local_ray(num_cpus=2) as cluster:
        run = Jobs(cluster.dashboard_url, tempfile.mkdtemp(prefix="bench-loop-")).submit(config)
        while run.record()["state"] not in FINAL:  # what the driver writes: asking Ray would cost the cluster time
            done = last_step(run)
            if done > (readings[-1].step if readings else 0):
                cpu_s = family.cpu_s()
                readings.append(Reading(done, time.monotonic(), cpu_s, family.by_process(), dict(family.names)))
            time.sleep(0.5)
        if run.status() != "finished":
            raise RuntimeError(f"{run.status().reason}\n{run.logs(tail=30)}")
    return readings, run


def last_step(run: Run) -> int:
    return run.metrics(keys=["grad_norm"])["last_step"] or 0


def whole(readings: list[Reading]) -> Cost:
    """(c): what the whole system took."""
    first = next(reading for reading in readings if reading.step >= WARM_UP_STEPS)
    last = readings[-1]
    steps = last.step - first.step
    return Cost((last.cpu_s - first.cpu_s) / steps, (last.wall_s - first.wall_s) / steps)


def tokens(run: Run) -> float:
    """Sampled tokens a step, over the steps after the warm-up."""
    return fmean(run.metrics(keys=["tokens/generated"], since=WARM_UP_STEPS)["columns"]["tokens/generated"])


def alone(part: str, run: Run) -> Cost:
    """(a) or (b): a half of the steps after the warm-up, in a process of its own."""
    command = [sys.executable, "-m", "bench.alone", part, str(run.directory.path), "--first", str(WARM_UP_STEPS + 1)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as in the run; read when torch starts
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=one_thread)
    steps = json.loads(done.stdout.splitlines()[-1]).values()
    return Cost(*(sum(column) / len(steps) for column in zip(*steps, strict=True)))


def push_rates(run: Run) -> tuple[float, float]:
    """Bytes a second of a weight push (gathered, published, loaded), and of a copy of as many bytes."""
    config = load(run.directory.config_path)
    folder = Path(prepare(config.model, list(config.environments), config.seed))
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    series = run.metrics()["columns"]
    parts = [series[f"timing_weight_sync_{side}_total"][WARM_UP_STEPS:] for side in ("trainer", "inference")]
    seconds = median(sum(step) for step in zip(*parts, strict=True))
    source = np.ones(size, dtype=np.uint8)
    start_s = time.perf_counter()
    for _ in range(20):
        source.copy()
    return size / seconds, 20 * size / (time.perf_counter() - start_s)


def report(readings: list[Reading], run: Run) -> str:
    """The table."""
    costs = {"a": alone("engine", run), "b": alone("torch", run), "c": whole(readings)}
    words = {"a": "vLLM alone", "b": "plain torch", "c": "whole system"}
    lines = [
        f"steps {WARM_UP_STEPS + 1} to {readings[-1].step}, {tokens(run):,.0f} sampled tokens each, "
        f"load {os.getloadavg()[0]:.1f}; CPU s and wall s a step"
    ]
    lines += [f"({key}) {words[key]:<14} {cost.cpu_s:7.2f} {cost.wall_s:7.2f}" for key, cost in costs.items()]
    a, b, c = costs.values()
    lines.append(f"(c) / (a + b)      {c.cpu_s / (a.cpu_s + b.cpu_s):7.2f} {c.wall_s / (a.wall_s + b.wall_s):7.2f}")
    lines += by_process(readings)
    push, copy = push_rates(run)
    lines.append(f"weight push        {push / 1e6:7.0f} MB/s, copy in memory {copy / 1e6:.0f} MB/s ({push / copy:.3f})")
    series = run.metrics()["columns"]
    for key in sorted(key for key in series if key.startswith("timing_") and key.endswith("_total")):
        values = [value for value in series[key][WARM_UP_STEPS:] if value is not None]
        if values:
            lines.append(f"  {key:<38} median {median(values):7.3f} s")
    return "\n".join(lines)


def by_process(readings: list[Reading]) -> list[str]:
    """The processes of the cluster that took the most. Ray's rename themselves: the last name is told."""
    first = next(reading for reading in readings if reading.step >= WARM_UP_STEPS)
    last, steps = readings[-1], readings[-1].step - first.step
    spent = {key: (cpu_s - first.by_process.get(key, 0.0)) / steps for key, cpu_s in last.by_process.items()}
    largest = sorted(spent.items(), key=lambda item: -item[1])
    return [f"  {cpu_s:7.3f} CPU s a step: {last.names[key][-90:]}" for key, cpu_s in largest if cpu_s > 0.02]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    print(report(*measure(options.steps, options.overrides)))


if __name__ == "__main__":
    main()
