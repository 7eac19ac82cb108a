import asyncio
import os
import subprocess
import sys

import pytest
from ray.exceptions import RayTaskError

from app import local_ray
from app.run_context import answered


async def told(error: Exception) -> None:
    raise error


def test_a_time_out_of_the_actors_own_stays_what_it_is():
    own = RayTaskError("log_eval", "the disk did not answer", TimeoutError()).as_instanceof_cause()
    assert isinstance(own, TimeoutError)
    with pytest.raises(RayTaskError, match="the disk did not answer"):
        asyncio.run(answered(told(own), 1, "the metrics actor"))


CLEANER = """
import ray

from app.run_context import connect

connect(serves=False)


@ray.remote(num_cpus=0)
class Controller:
    def address(self):
        return ray.get(Cleaner.options(lifetime="detached").remote().address.remote())


@ray.remote(num_cpus=0)
class Cleaner:
    def address(self):
        from ray.dashboard.utils import get_address_for_submission_client

        return get_address_for_submission_client(None)


print(ray.get(Controller.options(runtime_env={"env_vars": {"OF": "Ray Train"}}).remote().address.remote(), timeout=60))
"""


@pytest.mark.stack
def test_an_actor_of_a_run_finds_its_cluster_beside_another_one(ray_cluster):
    with local_ray.local_ray(num_cpus=1, object_store_mb=100):
        environment = {**os.environ, "RAY_ADDRESS": ray_cluster.address}
        words = [sys.executable, "-c", CLEANER]
        told = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert told.stdout.strip() == ray_cluster.dashboard_url, told.stderr
