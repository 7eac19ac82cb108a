"""kill -9 of each process of a run at random moments: the run goes on by itself, or one command resumes it.

What a checkpoint promises: a resumed run begins at its newest sealed checkpoint. Steps after it are done again, from
the same prompts in a new attempt; nothing before it is lost, and no group counts in two steps of the history that
stands. `make chaos` runs it, apart from the other tests; `TELESCOPE_CHAOS_ROUNDS=4` makes it 20 kills.
"""

import os
import random
import signal
import time
from collections.abc import Iterator

import polars as pl
import psutil
import pytest
from ray.util.state import list_actors

from app.jobs import Jobs, Run
from app.run_dir import application_of, namespace_of
from metrics.recompute import recompute
from tests.e2e.test_runs import columns, finished, nothing_is_left, rows, small_run

pytestmark = [pytest.mark.chaos, pytest.mark.stack, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("TELESCOPE_CHAOS_ROUNDS", "1"))
VICTIMS = ("metrics", "engine replica", "rollout stage", "trainer", "driver")
STEPS_BETWEEN = 6
LIMIT_S = 400


@pytest.fixture(scope="module")
def jobs(ray_cluster, serve_url, tmp_path_factory) -> Jobs:
    return Jobs(ray_cluster.dashboard_url, tmp_path_factory.mktemp("runs"))


def processes(run: Run, victim: str) -> Iterator[int]:
    """Pids of the run's processes of a kind. No other run is on this cluster."""
    if victim == "driver":
        yield run.record()["pid"]
        return
    for actor in list_actors(filters=[("state", "=", "ALIVE")], limit=1000, detail=True):
        kind, name = actor.class_name, actor.name or ""
        is_it = {
            "metrics": name == "metrics" and actor.ray_namespace == namespace_of(run.id),
            "engine replica": application_of(run.id) in name,
            "rollout stage": "Rollout" in kind or "Rollout" in name,
            "trainer": kind == "RayTrainWorker",
        }
        if is_it[victim]:
            yield actor.pid


def last_step(run: Run) -> int:
    return run.metrics()["last_step"] or 0


def goes_on(jobs: Jobs, run: Run, step: int) -> tuple[Run, bool]:
    """Waits for the step, resuming the run with one command where it failed; also whether it had to be resumed."""
    deadline, resumed = time.monotonic() + LIMIT_S, False
    while last_step(run) < step:
        status = run.status()
        if status == "failed":
            assert status.reason, "a failure without a reason"
            run, resumed = jobs.resume(run), True
        assert time.monotonic() < deadline, f"step {step} was not reached, {run.status()}\n{run.logs(tail=80)}"
        time.sleep(0.5)
    return run, resumed


def test_a_run_survives_the_death_of_each_of_its_processes(jobs):
    rng = random.Random(0)
    order = [victim for _ in range(ROUNDS) for victim in rng.sample(VICTIMS, len(VICTIMS))]
    steps = 4 + STEPS_BETWEEN * (len(order) + 1)
    run = jobs.submit(small_run(name="killed", steps=steps, max_async_rollout=1, checkpoint_every=2))
    run, _ = goes_on(jobs, run, 2)
    outcomes = []
    for victim in order:
        time.sleep(rng.random() * 2)
        pids = list(processes(run, victim))
        assert pids, f"no process of the {victim}"
        before = last_step(run)
        os.kill(pids[0], signal.SIGKILL)
        run, resumed = goes_on(jobs, run, before + STEPS_BETWEEN)
        assert not psutil.pid_exists(pids[0])
        outcomes.append((victim, "resumed" if resumed else "went on"))
        print(f"{victim}: killed after step {before}, {outcomes[-1][1]}")
    finished(run)
    assert {"metrics", "engine replica"} <= {victim for victim, outcome in outcomes if outcome == "went on"}
    assert_whole(run, steps)
    assert nothing_is_left([run])


def assert_whole(run: Run, steps: int) -> None:
    """Every step once, the ledger balanced, every number derivable, no group in two steps."""
    values = columns(run)
    assert sorted(values["reward_mean"]) == list(range(1, steps + 1))
    bins = ("trained", "zero_advantage", "max_async", "canceled", "error", "filtered", "in_flight")
    for step, started in values["ledger/started"].items():
        assert started == sum(values[f"ledger/{name}"][step] for name in bins), step
    assert recompute(run.directory.path).differences == []
    everything = rows(run)
    assert everything["sample_id"].is_duplicated().sum() == 0
    trained = everything.filter(pl.col("outcome") == "trained")
    assert trained.group_by("group_id").agg(pl.col("step").n_unique())["step"].max() == 1
