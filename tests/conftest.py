"""Shared by all tests: their order, and one Ray cluster for those that need the real stack."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from app import local_ray
from app.local_ray import LocalRay

# Before anything imports Ray, transformers or Gradio, which read these once. A process that was once connected with
# Ray's token authentication keeps asking for tokens, and a cluster without them never gets through to it.
os.environ.update(local_ray.ENVIRONMENT | {"HF_HUB_OFFLINE": "1", "GRADIO_ANALYTICS_ENABLED": "False"})
os.environ["WANDB_MODE"] = "offline"
os.environ.pop("RAY_ADDRESS", None)

# A busy machine is no failure of a property.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Deprecations inside other people's packages are theirs; everything else that warns fails a test.
THIRD_PARTY = "accelerate|fastapi|gradio|gradio_client|httpx|pydantic|ray|starlette|torch|transformers|vllm|wandb"


def pytest_configure(config: pytest.Config) -> None:
    for category in ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{category}:({THIRD_PARTY})(\\..*)?$")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, then the real stack, then the browser; within each as collected.

    Of the stack, tests with a Ray or processes of their own come before those that share the cluster, which stays.
    """

    def late(item: pytest.Item) -> tuple[bool, bool, bool]:
        shares_cluster = "ray_cluster" in getattr(item, "fixturenames", ())
        return "browser" in item.keywords, "stack" in item.keywords, shares_cluster

    items.sort(key=late)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[LocalRay]:
    """A Ray cluster of this test run only, with a dashboard for Ray Jobs; this process is connected to it.

    Its Serve has a port of its own: whoever starts Serve decides, a run would take 8000, and share it with others.
    """
    import ray
    from ray import serve

    with local_ray.local_ray(num_cpus=2) as cluster:
        os.environ["RAY_ADDRESS"] = cluster.address
        ray.init(address=cluster.address, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": local_ray.free_ports(1)[0]})
        yield cluster
        ray.shutdown()
        os.environ.pop("RAY_ADDRESS")


@pytest.fixture(scope="session")
def serve_url(ray_cluster: LocalRay) -> str:
    """Where Serve of the test cluster listens."""
    from ray.serve.context import _get_global_client

    client = _get_global_client()
    assert client is not None
    return f"http://127.0.0.1:{client.http_config.port}"
