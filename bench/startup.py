"""How long the demo takes to its first training step, where the time goes, and which processes use it.

    python -m bench.startup [--rounds 2] [key=value …]

The same start as `make demo`: Ray, dashboard, run. The policy is prepared before, so that its cache is warm; the first
round after a reboot reads libraries from the disk, later ones from memory.
"""

import argparse
import os
import tempfile
import time
from typing import Any

from app import local_ray
from app.config import Config, load
from app.jobs import Jobs
from app.launch import Dashboard
from app.policy import prepare
from app.run_dir import FINAL, application_of
from bench.family import Family
from bench.loop import last_step

CONFIG = "configs/demo.yaml"
POLL_S = 0.25
LIMIT_S = 300


def stages(config: Config) -> tuple[dict[str, float], Family, float]:
    """Seconds from the start until each stage was first seen, the processes of that time, and when it began (epoch)."""
    began, began_at = time.monotonic(), time.time()
    seen: dict[str, float] = {}

    def reached(stage: str, holds: bool) -> None:
        if holds:
            seen.setdefault(stage, time.monotonic() - began)

    family = Family(with_me=False)
    with local_ray.local_ray(num_cpus=max(2, os.cpu_count() or 2)) as cluster:
        reached("Ray answers", True)
        [port] = local_ray.free_ports(1)
        dashboard = Dashboard(cluster, port)
        run = Jobs(cluster.dashboard_url, tempfile.mkdtemp(prefix="bench-startup-")).submit(config)
        reached("run submitted", True)
        while "first step" not in seen:
            applications = dashboard.client.get_serve_details()["applications"]
            reached("driver began", run.record()["state"] != "pending")
            reached("dashboard answers", _running(applications, "telescope"))
            reached("engine ready", _running(applications, application_of(run.id)))
            reached("first step", last_step(run) > 0)
            if run.record()["state"] in FINAL or time.monotonic() - began > LIMIT_S:
                raise RuntimeError(f"no first step within {LIMIT_S} s: {run.status().sentence()}\n{run.logs(tail=30)}")
            time.sleep(POLL_S)
        family.cpu_s()
        run.stop()
    return seen, family, began_at


def _running(applications: dict[str, Any], name: str) -> bool:
    return applications.get(name, {}).get("status") == "RUNNING"


def report(seen: dict[str, float], family: Family, began_at: float) -> str:
    spent = family.by_process()
    lines = [f"{seconds:7.1f} s  {stage}" for stage, seconds in sorted(seen.items(), key=lambda item: item[1])]
    lines.append(f"{sum(spent.values()):7.1f} CPU s of all processes until then, load {os.getloadavg()[0]:.1f}")
    largest = sorted(spent.items(), key=lambda item: -item[1])[:24]
    lines += [
        f"    {cpu_s:7.2f} CPU s, started at {key[1] - began_at:5.1f} s  {family.names[key][-80:]}"
        for key, cpu_s in largest
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args()
    config = load(CONFIG, options.overrides)
    prepare(config.model, list(config.environments), config.seed)
    os.environ.update(local_ray.ENVIRONMENT)
    for _ in range(options.rounds):
        print(report(*stages(config)), flush=True)


if __name__ == "__main__":
    main()
