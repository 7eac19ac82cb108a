"""vLLM's side of a weight push: loads safetensors buckets through the layer-wise reload.

A plain `model.load_weights()` cannot work on CPU, where linear weights are re-packed when they are loaded and the
original tensors are emptied.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
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

    model: Any

    def init_transfer_engine(self, init_info: NoRendezvous) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: BucketFile) -> None:
        with safe_open(update_info.path, "pt") as bucket:
            names = bucket.keys()
            self.model.load_weights(self._with_tied_head((name, bucket.get_tensor(name)) for name in names))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass

    def _with_tied_head(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Sends a tied embedding a second time as the output head.

        The head's packed copy is only rebuilt when `lm_head.weight` itself is loaded; without this the engine keeps
        the OLD head, and nothing is raised.
        """
        tied = getattr(self.model_config.hf_config, "tie_word_embeddings", False)
        for name, tensor in weights:
            yield name, tensor
            if tied and name.endswith("embed_tokens.weight"):
                yield "lm_head.weight", tensor
