"""Published weights: how they are packed, who owns the newest ones, how vLLM learns to load them.

The trainer packs its parameters into safetensors buckets, the store keeps the newest version (so it outlives
the trainer and a late engine can catch up), and each engine loads the buckets through vLLM's weight-transfer API.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from app.clock import shown
from app.parent import end_with_parent

if TYPE_CHECKING:
    import torch

TRANSFER_BACKENDS = {
    "telescope": "BucketTransfer",
    "telescope_nccl": "GroupTransfer",
    "telescope_gloo": "GlooGroupTransfer",
}
"""vLLM's name for each of ours → its class in `weight_backend`."""
BUCKET_BYTES = 256 << 20
STORE_NAME = "weights"


def register() -> None:
    """Entry point of group `vllm.general_plugins`: vLLM calls it in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    if Factory._registry.keys() >= TRANSFER_BACKENDS.keys():
        return
    for name, kind in TRANSFER_BACKENDS.items():
        Factory.register_engine(name, "app.weight_backend", kind)
    end_with_parent()  # vLLM's core does not notice that its replica was killed


def transfer_backend(weight_transfer: str, use_gpu: bool) -> str:
    """vLLM's name for what a run's `weight_transfer` is on this kind of machine."""
    if weight_transfer == "object_store":
        return "telescope"
    return "telescope_nccl" if use_gpu else "telescope_gloo"


def buckets(parameters: Iterable[tuple[str, "torch.Tensor"]], limit: int = BUCKET_BYTES) -> Iterator[np.ndarray]:
    """Named CPU tensors → safetensors files of about `limit` bytes each, as uint8 arrays.

    Arrays, not tensors: Ray copies numpy without pickling it (20 ms against 276 ms for 105 MB).
    """
    from safetensors.torch import save

    bucket: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in parameters:
        bucket[name] = tensor.contiguous()
        size += tensor.numel() * tensor.element_size()
        if size >= limit:
            yield np.frombuffer(save(bucket), dtype=np.uint8)
            bucket, size = {}, 0
    if bucket:
        yield np.frombuffer(save(bucket), dtype=np.uint8)


@ray.remote(num_cpus=0, max_restarts=-1)
class WeightStore:
    """Owns the newest published weights of one run."""

    def __init__(self) -> None:
        self.version = -1
        self.refs: list[ray.ObjectRef] = []

    def publish(self, version: int, *bucket_arrays: np.ndarray) -> list[ray.ObjectRef]:
        """Keeps the buckets as objects of this actor and returns their references."""
        self.refs = [ray.put(bucket) for bucket in bucket_arrays]
        self.version = version
        return self.refs

    def clock(self) -> tuple[str, float]:
        """The run's clock (app.clock)."""
        return shown()

    def latest(self) -> tuple[int, list[ray.ObjectRef]]:
        """(version, references); version -1 before the first publication."""
        return self.version, self.refs


def store(namespace: str) -> Any:
    """The weight store of the run; raises ValueError when the run has none."""
    return ray.get_actor(STORE_NAME, namespace=namespace)
