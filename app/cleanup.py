"""What a run leaves on the cluster when its driver could not clean up: its Serve application, its named actors.

`python -m app.cleanup RUN_ID` is what the job API runs, as a Ray job, when it is not itself on the cluster.
"""

import argparse
import logging

from app.run_dir import application_of, check_id, namespace_of


def clean(run_id: str, pending_job: str | None = None) -> list[str]:
    """Remove what the run left on the cluster that this process is connected to; returns what was there.

    `pending_job` is a Ray job that has not started: Ray's own stop would wait for it to start.
    """
    removed = [*_remove_application(application_of(check_id(run_id))), *_remove_actors(namespace_of(run_id))]
    return removed + (_remove_supervisor(pending_job) if pending_job else [])


def _remove_application(name: str) -> list[str]:
    from ray import serve

    if name not in serve.status().applications:
        return []
    serve.delete(name)
    return [f"Serve application {name}"]


def _remove_actors(where: str) -> list[str]:
    from ray.util import list_named_actors

    names = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == where]
    return [f"actor {name}" for name in names if _kill(name, where)]


def _remove_supervisor(job_id: str) -> list[str]:
    from ray.dashboard.modules.job.common import JOB_ACTOR_NAME_TEMPLATE, SUPERVISOR_ACTOR_RAY_NAMESPACE

    name = JOB_ACTOR_NAME_TEMPLATE.format(job_id=job_id)
    return [f"pending job {job_id}"] if _kill(name, SUPERVISOR_ACTOR_RAY_NAMESPACE) else []


def _kill(name: str, where: str) -> bool:
    import ray

    try:
        actor = ray.get_actor(name, namespace=where)
    except ValueError:  # it went away by itself since it was listed
        return False
    ray.kill(actor, no_restart=True)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_id")
    parser.add_argument("--pending-job")
    given = parser.parse_args()
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
    for what in clean(given.run_id, given.pending_job):
        print(f"removed {what}", flush=True)


if __name__ == "__main__":
    main()
