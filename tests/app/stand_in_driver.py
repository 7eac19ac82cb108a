"""Stands in for `app.train` as the driver of a Ray job: does what the name of its run says, in a second or two."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from app.run_dir import RunDir


def leave_things_behind(run: RunDir) -> None:
    """What a run has on the cluster: a Serve application and an actor that outlives the driver."""
    import ray
    from ray import serve

    ray.init(address="auto", log_to_driver=False)

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Engine:
        pass

    @ray.remote(num_cpus=0)
    class Store:
        pass

    where = {"name": "weights", "namespace": f"telescope-{run.id}", "lifetime": "detached"}
    Store.options(**where).remote()
    serve.run(Engine.bind(), name=f"policy-{run.id}", route_prefix=None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    run = RunDir(given.run_dir)
    behaviour = run.record()["name"]
    with run.writer():
        run.update(state="running", started_at=time.time())
        print(f"driver of {run.id}, resume={given.resume}", flush=True)
        if given.resume or behaviour == "finishes":
            run.end("finished")
        elif behaviour == "says-nothing":
            return
        elif behaviour == "raises":
            sys.exit("the reward of environment 'sums' cannot be imported")
        elif behaviour == "is-killed":
            leave_things_behind(run)
            os.kill(os.getpid(), signal.SIGKILL)
        elif behaviour == "connects":
            import ray

            ray.init(address="auto", log_to_driver=False)
            time.sleep(600)
        elif behaviour == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        else:
            time.sleep(600)


if __name__ == "__main__":
    main()
