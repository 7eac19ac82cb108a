"""The control plane on the cluster of the tests, with a folder of runs of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROUTE_LIMIT_S = 60


@contextmanager
def control_plane(root: Path, url: str) -> Iterator[None]:
    """Deployed at the root of the cluster's Serve, which listens at `url`, while the block runs."""
    from ray import serve

    from app import serve as control

    environment = {**control.ENVIRONMENT, "TELESCOPE_RUNS": str(root)}
    options = {"num_cpus": 0, "runtime_env": {"env_vars": environment}}
    serve.run(control.ControlPlane.options(ray_actor_options=options).bind(), name="control", route_prefix="/")
    try:
        _await_route(url)
        yield
    finally:
        serve.delete("control")


def _await_route(url: str) -> None:
    """The proxy hears of a new application a little after it runs."""
    end = time.monotonic() + ROUTE_LIMIT_S
    while "/" not in httpx.get(f"{url}/-/routes", timeout=30).json():
        assert time.monotonic() < end, f"no application at {url} within {ROUTE_LIMIT_S} s"
        time.sleep(0.1)
