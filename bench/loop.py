"""What a step costs: CPU seconds of ALL processes of a run, and wall seconds, with the parts of the step beside them.

    python -m bench.loop [--steps 20] [key=value …]

The load: 16 prompts × 8 completions of up to 64 tokens, the embedded 3M model in float32, one trainer process with one
thread. For this load TRL 1.16's GRPOTrainer took 4.15 CPU seconds a step on two cores of this kind.
"""

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from app import local_ray
from app.config import from_dict
from app.jobs import Jobs, Run

REFERENCE_CPU_S = 4.15
WARM_UP_STEPS = 5
CONFIG: dict[str, Any] = {
    "name": "bench-loop",
    "model": "embedded",
    "environments": [{"name": "bench.digits:Digits"}],
    "prompts_per_step": 16,
    "group_size": 8,
    "groups_per_ticket": 4,
    "max_prompt_tokens": 24,
    "max_tokens": 64,
    "seq_len": 512,
    "learning_rate": 3e-4,
    "max_async_rollout": 1,
    "discard_group_zero_advantage": False,
}


@dataclass
class Reading:
    """The family's CPU time when a step was first seen done."""

    step: int
    wall_s: float
    cpu_s: float


class Family:
    """CPU time of this process and everything below it, of processes that ended meanwhile too."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, float], float] = {}

    def cpu_s(self) -> float:
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                times = process.cpu_times()
                self.seen[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return sum(self.seen.values())


def measure(steps: int, overrides: list[str]) -> tuple[list[Reading], Run]:
    """Runs the load and reads the family's CPU time at every step."""
    config = from_dict(CONFIG | {"steps": steps}, overrides)
    os.environ.update(local_ray.ENVIRONMENT)
    family, readings = Family(), []
    with local_ray.local_ray(num_cpus=2) as cluster:
        run = Jobs(cluster.dashboard_url, tempfile.mkdtemp(prefix="bench-loop-")).submit(config)
        while not run.status().final:
            cpu_s, done = family.cpu_s(), run.metrics()["last_step"] or 0
            if done > (readings[-1].step if readings else 0):
                readings.append(Reading(done, time.monotonic(), cpu_s))
            threading.Event().wait(0.2)
        if run.status() != "finished":
            raise RuntimeError(f"{run.status().reason}\n{run.logs(tail=30)}")
    return readings, run


def report(readings: list[Reading], run: Run) -> str:
    """Per step after the warm-up."""
    first = next(reading for reading in readings if reading.step >= WARM_UP_STEPS)
    last = readings[-1]
    steps = last.step - first.step
    cpu_s, wall_s = (last.cpu_s - first.cpu_s) / steps, (last.wall_s - first.wall_s) / steps
    series = run.metrics()["columns"]
    lines = [
        f"steps {first.step + 1} to {last.step}, load {os.getloadavg()[0]:.1f}",
        f"CPU s a step, all processes   {cpu_s:6.2f}   ({cpu_s / REFERENCE_CPU_S:.2f} of TRL's {REFERENCE_CPU_S})",
        f"wall s a step                 {wall_s:6.2f}",
        f"first step after              {series['timing_step_total'][0] or 0:6.1f} s of loop",
    ]
    for key in sorted(key for key in series if key.startswith("timing_") and key.endswith("_total")):
        values = [value for value in series[key][WARM_UP_STEPS:] if value is not None]
        if values:
            lines.append(f"  {key:<38} median {median(values):7.3f} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    print(report(*measure(options.steps, options.overrides)))


if __name__ == "__main__":
    main()
