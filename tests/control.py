"""The control plane on the cluster of the tests, with a folder of runs of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def control_plane(root: Path) -> Iterator[None]:
    """Deployed at the root of the cluster's Serve while the block runs."""
    from ray import serve

    from app import serve as control

    environment = {**control.ENVIRONMENT, "TELESCOPE_RUNS": str(root)}
    options = {"num_cpus": 0, "runtime_env": {"env_vars": environment}}
    serve.run(control.ControlPlane.options(ray_actor_options=options).bind(), name="control", route_prefix="/")
    try:
        yield
    finally:
        serve.delete("control")
