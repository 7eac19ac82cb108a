"""Runs whose processes are frozen: they end within the limit, by the name of the culprit, and say who waited for it."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from ray.util.state import list_actors

from app.jobs import Jobs, Run, Status
from metrics.recompute import recompute
from tests.e2e.test_runs import RUN_TIMEOUT_S, nothing_is_left, reaches, small_run, steps_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

STALL_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def jobs(ray_cluster, serve_url, tmp_path_factory) -> Jobs:
    return Jobs(ray_cluster.dashboard_url, tmp_path_factory.mktemp("runs"))


def pids(kind: str) -> list[int]:
    """Of actors whose class has this in its name. No other run is at work."""
    alive = list_actors(filters=[("state", "=", "ALIVE")], limit=1000, detail=True)
    return [actor.pid for actor in alive if kind in actor.class_name]


def frozen(run: Run, pid: int) -> Status:
    """What becomes of the run when this process of it is frozen."""
    os.kill(pid, signal.SIGSTOP)
    status = run.wait(RUN_TIMEOUT_S)
    assert status == "failed"
    assert f"no step was finished for {STALL_TIMEOUT_S:g} s (stall_timeout_s)" in status.reason
    assert status.reason.count("is stopped") == 1
    stacks = Path(run.directory.path, "logs", f"stacks-{run.record()['attempt']}.txt").read_text()
    assert f"pid {pid} on" in stacks.splitlines()[0]
    assert nothing_is_left([run])
    ends(pid)
    return status


def ends(pid: int) -> None:
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.2)


def test_a_frozen_reward_and_then_a_frozen_rank_are_named_with_those_who_wait_for_them(jobs):
    run = jobs.submit(
        small_run(
            name="frozen",
            steps=5000,
            max_async_rollout=1,
            checkpoint_every=2,
            num_workers=2,
            cpus_per_worker=0.2,
            environments=[{"name": "sums", "reward_timeout_s": 600.0}],  # else its process would be replaced
            stall_timeout_s=STALL_TIMEOUT_S,
        )
    )
    reaches(run, step=2)
    [stage] = pids("Environments")
    [reward] = [child.pid for child in psutil.Process(stage).children()]
    reason = frozen(run, reward).reason
    assert f"(pid {reward} on " in reason.split(" is stopped")[0]
    assert f"(MapBatches(Environments)) (pid {stage} on " in reason
    assert reason.count(" waits for its environment's process") == 1
    assert reason.count(" waits for a batch of rollouts") == 2
    assert "; the engines have 0 unfinished requests; " in reason

    run = jobs.resume(run)
    reaches(run, step=steps_of(run) + 2)
    rank, other = pids("RayTrainWorker")
    reason = frozen(run, rank).reason
    assert f"RayTrainWorker (pid {rank} on " in reason.split(" is stopped")[0]
    assert f"RayTrainWorker (pid {other} on " in reason
    assert reason.count(" waits for the other ranks") == 1
    assert recompute(run.directory.path).differences == []
