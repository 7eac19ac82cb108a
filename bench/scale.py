"""What the control plane costs at the size of a large cluster, without one.

    python -m bench.scale full [steps=12] [key=value …]    64 engines of 256 slots, 10,000 samples of 512 tokens a step
    python -m bench.scale long [steps=1000] [key=value …]  many steps of 256 samples: what grows with a run's length
    python -m bench.scale ray [steps=12] [key=value …]     what Ray adds: real stream, Serve and actors, fake engines

`full` and `long` run `bench.simulation`: keys are the fields of its `Load`. Results and what they mean: docs/scale.md.
"""

import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.simulation import Load, Run, StepCost

WARM_UP_STEPS = 1
LONG = {
    "prompts_per_step": 32,
    "groups_per_ticket": 8,
    "mean_tokens": 64,
    "max_tokens": 256,
    "steps": 1_000,
    "ranks": 8,
}
FULL = {"max_async": 4, "step_s": 8.0, "steps": 12}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in ("full", "long", "ray"):
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    kind, *overrides = arguments
    if kind == "ray":
        from bench import scale_ray

        scale_ray.report(dict(pair.split("=") for pair in overrides))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as folder:
        run = Run(load_of(FULL if kind == "full" else LONG, overrides), Path(folder)).go()
        report(run)
    return 0


def load_of(settings: dict[str, Any], overrides: list[str]) -> Load:
    """The load with `key=value` changes. Raises SystemExit that names a key which is not there."""
    changes: dict[str, Any] = {}
    for pair in overrides:
        key, _, value = pair.partition("=")
        if key not in Load.__dataclass_fields__:
            raise SystemExit(f"{key!r}: wanted one of {', '.join(Load.__dataclass_fields__)}")
        changes[key] = type(getattr(Load(), key))(value)
    return Load(**(settings | changes))


def report(run: Run) -> None:
    load, costs = run.load, run.costs[WARM_UP_STEPS:]
    print(f"{load}\n{load.samples_per_step} samples a step, {len(run.costs)} steps")
    took = median(cost.took_s for cost in costs)
    busy = run.engines.busy_s / (load.engines * load.slots * sum(cost.took_s for cost in run.costs))
    print(f"a step took {took:.1f} s of the simulated clock; slots busy {100 * busy:.0f} %")
    print(f"{'CPU seconds a step':<28} {'mean':>12} {'first third':>12} {'last third':>12}")
    for part in sorted({part for cost in run.costs for part in cost.cpu_s}):
        print(f"{part:<28} " + " ".join(f"{value:>12.4f}" for value in row(run.costs, part)))
    thirds = [costs[0], costs[len(costs) // 3], costs[2 * len(costs) // 3], costs[-1]]
    print("memory, MiB after step:", ", ".join(f"{cost.step}: {cost.rss_mib:.0f}" for cost in thirds))
    print(f"{'messages':<28} {'a step':>8} {'KiB each':>12} {'MiB a step':>12}")
    steps = len(run.costs)
    for kind, count in sorted(run.meters.messages.items()):
        size = run.meters.sizes[kind]
        print(f"{kind:<28} {count / steps:>8.1f} {size / count / 2**10:>12.1f} {size / steps / 2**20:>12.2f}")
    print("held at the end:", ", ".join(f"{name} {value}" for name, value in run.held().items()))
    print("on disk, MiB a step:", ", ".join(f"{k} {v / steps / 2**20:.2f}" for k, v in run.stored().items()))


def row(costs: list[StepCost], part: str) -> list[float]:
    """Mean of all steps (the first one draws what sampling may run ahead), medians of the first and the last third."""
    values = [cost.cpu_s.get(part, 0.0) for cost in costs]
    third = max(1, len(values) // 3)
    return [fmean(values), median(values[:third]), median(values[-third:])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
