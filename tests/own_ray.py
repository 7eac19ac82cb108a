"""A small Ray of this process alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def own_ray() -> Iterator[Any]:
    """The module `ray`, connected to a cluster of one CPU that ends with the block."""
    import ray

    ray.init(
        address="local",  # whatever Ray the machine runs
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield ray
    finally:
        ray.shutdown()
