"""vLLM's side of a weight push: safetensors buckets, or a process group with the trainer.

All load through vLLM's layer-wise reload. A plain `model.load_weights()` cannot work on CPU, where linear weights are
re-packed when they are loaded and the original tensors are emptied.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed import ProcessGroup
from vllm.distributed.utils import (
    stateless_destroy_torch_distributed_process_group,
    stateless_init_torch_distributed_process_group,
)
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class NoRendezvous(WeightTransferInitInfo):
    """Buckets come as files: there is no process group to join."""


@dataclass
class BucketFile(WeightTransferUpdateInfo):
    path: str


class BucketTransfer(WeightTransferEngine[NoRendezvous, BucketFile]):
    init_info_cls = NoRendezvous
    update_info_cls = BucketFile

    def init_transfer_engine(self, init_info: NoRendezvous) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BucketFile) -> None:
        load_bucket(self.model, self.model_config, update_info.path)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


class GroupTransfer(NCCLWeightTransferEngine):
    """vLLM's own NCCL engine, which can read buckets too: that is how an engine that came late gets its weights."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        return BucketFile(**update_dict) if "path" in update_dict else super().parse_update_info(update_dict)

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo | BucketFile) -> None:
        if isinstance(update_info, BucketFile):
            load_bucket(self.model, self.model_config, update_info.path)
        else:
            self.receive_from_group(update_info)

    def receive_from_group(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        super().receive_weights(update_info)


class GlooGroupTransfer(GroupTransfer):
    """The same on CPUs: one broadcast a parameter, over gloo."""

    group: ProcessGroup | None = None

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        assert init_info.master_address is not None
        assert init_info.master_port is not None
        rank = init_info.rank_offset + self.parallel_config.rank
        self.group = gloo_group(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def receive_from_group(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        assert self.group is not None, "update_weights before init_weight_transfer_engine"
        model: Any = self.model
        for name, dtype, shape in zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(weight, 0).wait()
            model.load_weights([(name, weight)])

    def shutdown(self) -> None:
        if self.group is not None:
            stateless_destroy_torch_distributed_process_group(self.group)
            self.group = None


def gloo_group(address: str, port: int, rank: int, world_size: int) -> ProcessGroup:
    """A group of the trainer's first rank (rank 0) and every worker of the engines, apart from all others."""
    group = stateless_init_torch_distributed_process_group(address, port, rank, world_size, backend="gloo")
    assert isinstance(group, ProcessGroup)
    return group


def load_bucket(model: Any, model_config: Any, path: str) -> None:
    """Loads the safetensors file into a model that is being reloaded."""
    tied = getattr(model_config.hf_config, "tie_word_embeddings", False)
    with safe_open(path, "pt") as bucket:
        names = bucket.keys()
        model.load_weights(with_tied_head(((name, bucket.get_tensor(name)) for name in names), tied))


def with_tied_head(weights: Iterable[tuple[str, Any]], tied: bool) -> Iterator[tuple[str, Any]]:
    """Sends a tied embedding a second time as the output head.

    The head's packed copy is only rebuilt when `lm_head.weight` itself is loaded; without this the engine keeps the OLD
    head, and nothing is raised.
    """
    for name, weight in weights:
        yield name, weight
        if tied and name.endswith("embed_tokens.weight"):
            yield "lm_head.weight", weight
