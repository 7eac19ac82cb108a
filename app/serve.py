"""The control plane as a Serve application: the dashboard at /, the job API at /api.

    serve run app.serve:app            (or: serve deploy configs/serve.yaml)

Runs do not depend on it: it can be restarted while they train. The one module that knows both the job API and the
dashboard.
"""

import logging
import os
import sys
import threading
import time
from typing import Any

from fastapi import FastAPI
from ray import serve

from app import run_dir
from app.jobs import Jobs
from app.local_ray import PortInUse, check_unshared

SETTLE_EVERY_S = 5.0
logger = logging.getLogger(__name__)
# Read here, where `serve run` is typed; the replica has the environment of the cluster.
PASSED_ON = {key: os.environ[key] for key in ("TELESCOPE_TOKEN",) if key in os.environ}
ENVIRONMENT = {"GRADIO_ANALYTICS_ENABLED": "False", "TELESCOPE_RUNS": str(run_dir.root_of())}


def build() -> FastAPI:
    """Made inside the replica: Gradio's application cannot be sent there."""
    from app import api
    from ui import build as build_dashboard
    from ui.app import spared
    from ui.guard import check_bind

    http = _http()
    check_bind(http.host)
    try:
        check_unshared(http.port)
    except PortInUse as error:
        _let_go_of_the_port(error)
        raise
    jobs = Jobs(root=run_dir.root_of())
    threading.Thread(target=_settle, args=(jobs,), name="settle", daemon=True).start()
    return spared(build_dashboard(jobs.folder, jobs, [api.routes(jobs)]))


def _let_go_of_the_port(reason: PortInUse) -> None:
    """Ends this Serve where nothing else is on it: its proxies would go on taking requests meant for the other one."""
    if len(serve.status().applications) == 1:
        print(f"the dashboard did not start, and its Serve ends: {reason}", file=sys.stderr, flush=True)
        _client()._controller.graceful_shutdown.remote(wait=False)  # waiting for it would be waiting for ourselves


def _http() -> Any:
    """Where the proxies of this cluster's Serve listen."""
    return _client().http_config


def _client() -> Any:
    from ray.serve.context import _get_global_client

    client = _get_global_client()
    assert client is not None, "a replica runs inside Serve"
    return client


def _settle(jobs: Jobs) -> None:
    """Put the states of dead runs right also while nobody asks for them."""
    while True:
        try:
            jobs.list()
        except Exception:  # one bad run must not leave all later ones without care; it is tried again
            logger.exception("the states of runs could not be brought up to date")
        time.sleep(SETTLE_EVERY_S)


@serve.deployment(
    name="control",
    num_replicas=1,  # pages and live updates of one browser must meet the same process
    max_ongoing_requests=400,
    graceful_shutdown_wait_loop_s=0.5,
    graceful_shutdown_timeout_s=3,  # a page asks again; nothing it does must be finished
    ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": ENVIRONMENT | PASSED_ON}},
    logging_config={"enable_access_log": False},
)
@serve.ingress(build)
class ControlPlane:
    """Everything it does is in the routes."""


app = ControlPlane.bind()  # type: ignore[attr-defined]
