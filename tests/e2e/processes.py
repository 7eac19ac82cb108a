"""The processes of a run by what they do: to kill one of them, or to see that none is left."""

import contextlib
from collections.abc import Iterator

import psutil
from ray.job_submission import JobDetails
from ray.util.state import list_actors
from ray.util.state.common import ActorState

from app.jobs import Run
from app.run_dir import application_of, namespace_of

DASHBOARD = "telescope#control"
STAGES = ("Rollout", "Environments", "Batcher")


def pids(run: Run, kind: str) -> list[int]:
    """The run's processes of this kind; of the whole job every one, its driver first."""
    if kind == "driver":
        return [run.record()["pid"]] if run.record()["pid"] else []
    if kind == "engine core":
        return [child.pid for pid in pids(run, "Serve replica") for child in children(pid) if "Engine" in child.name()]
    if kind == "whole job":
        job = job_of(run)
        return [*pids(run, "driver"), *(actor.pid for actor in alive() if is_of(run, job, actor))]
    return [actor.pid for actor in alive() if is_a(run, kind, actor)]


def is_a(run: Run, kind: str, actor: ActorState) -> bool:
    name = actor.name or ""
    return {
        "Serve replica": application_of(run.id) in name,
        "Train worker": actor.class_name == "RayTrainWorker",
        "pipeline stage": any(stage in actor.class_name or stage in name for stage in STAGES),
        "metrics actor": name == "metrics" and actor.ray_namespace == namespace_of(run.id),
        "dashboard": DASHBOARD in name,
    }[kind]


def job_of(run: Run) -> JobDetails:
    """The Ray job whose driver writes the run."""
    job_id, jobs = run.record()["job_id"], run.jobs.client().list_jobs()
    return next(job for job in jobs if job_id in (job.submission_id, None) and run.id in job.entrypoint)


def is_of(run: Run, job: JobDetails, actor: ActorState) -> bool:
    """An actor of the run's job, one of its replicas, or the supervisor that Ray Jobs gave it.

    Detached actors of the job are Ray Data's own: the first run on a cluster starts them for all.
    """
    mine = actor.job_id == job.job_id and not actor.is_detached
    named = (application_of(run.id), f"job_actor_{job.submission_id}")
    return mine or any(name in (actor.name or "") for name in named)


def alive() -> list[ActorState]:
    return [a for a in list_actors(filters=[("state", "=", "ALIVE")], limit=1000, detail=True) if a.pid]


def children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def family(run: Run) -> Iterator[psutil.Process]:
    """Every process of the run, and what those started."""
    for pid in pids(run, "whole job"):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)
            yield from children(pid)


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
