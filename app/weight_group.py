"""The trainer's side of a push over a process group: its first rank and every worker of the engines.

On GPUs the group is vLLM's own NCCL weight-transfer engine, on CPUs the same protocol over gloo. Whatever is sent is
kept for the weight store, too: an engine that comes later, or is replaced, reads it from there.
"""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import ray.util
import torch
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
)

from app.engine import Loaded
from app.trainer import Trainer
from app.weight_backend import gloo_group, with_tied_head

Call = Callable[..., list[Any]]
"""(method, arguments…) → the replies of all engines."""
NEW_GROUPS = 3
"""How often a push begins again because an engine was replaced meanwhile."""


class EngineReplaced(RuntimeError):
    """An engine is not in the group: it came after the group was made."""


class Parameters(WeightSource):
    """The policy's parameters, whole, in the arithmetic of the engines; every rank iterates in step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.tied = bool(getattr(trainer.policy.config, "tie_word_embeddings", False))
        self.kept: list[tuple[str, torch.Tensor]] = []
        """(name, tensor on the CPU) of what was sent last."""

    def metadata(self) -> list[ParamMeta]:
        shapes = ((name, tuple(weight.shape)) for name, weight in self.trainer.policy.named_parameters())
        return [ParamMeta(name, self.trainer.dtype, shape) for name, shape in with_tied_head(shapes, self.tied)]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.kept = []
        return with_tied_head(self._own(), self.tied)

    def _own(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.trainer.full_parameters(self.trainer.device):
            if self.trainer.rank == 0:
                self.kept.append((name, weight.to("cpu")))
            yield name, weight


class EnginesClient:
    """What vLLM's trainer engine asks of the inference side, passed on to every replica."""

    def __init__(self, call: Call, died: Callable[[Exception], bool]) -> None:
        self.call, self.died = call, died
        self.members: list[str] = []
        self.version = -1
        self.loaded: list[Loaded] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.call("join_group", init_info, self.members)

    def start_weight_update(self) -> None:
        try:
            ready = self.call("start_update", self.version, self.members)
        except Exception as error:
            if not self.died(error):
                raise
            ready = [False]
        if not all(ready) or len(ready) < len(self.members):
            self.call("cancel_update")
            raise EngineReplaced(f"version {self.version}: not every engine is one of {', '.join(self.members)}")

    def update_weights(self, update_info: Any) -> None:
        self.call("receive", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.loaded = self.call("finish_update")


class GlooTrainer(NCCLTrainerWeightTransferEngine):
    """vLLM's NCCL trainer engine with a gloo group in its place."""

    group: Any = None

    @classmethod
    def trainer_init(cls, init_info: NCCLTrainerInitInfo, *, client: Any, source: WeightSource | None = None) -> Self:
        assert source is not None
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            address, port, world_size = init_info.master_address, init_info.master_port, init_info.world_size
            told = NCCLWeightTransferInitInfo(
                master_address=address, master_port=port, rank_offset=1, world_size=world_size
            )
            # Both sides wait for each other in the rendezvous.
            with ThreadPoolExecutor(max_workers=1) as beside:
                joined = beside.submit(client.init_weight_transfer_engine, worker_init_payload(told))
                engine.group = gloo_group(address, port, 0, world_size)
                joined.result()
        return engine

    def _broadcast(self, source: WeightSource, meta: list[ParamMeta]) -> None:
        for _, weight in self._checked_iter(source, meta) if self.is_sender else source:
            if self.is_sender:
                self.group.broadcast(weight.contiguous(), 0).wait()

    def shutdown(self) -> None:
        self.group = None


class WeightGroup:
    """The group of a run. Every rank calls `send`; rank 0 has a client, talks to the engines, and makes the group anew
    when they have changed."""

    def __init__(self, trainer: Trainer, client: EnginesClient | None, tensor_parallel: int) -> None:
        self.trainer, self.client, self.tensor_parallel = trainer, client, tensor_parallel
        self.source = Parameters(trainer)
        self.engine: TrainerWeightTransferEngine | None = None

    def send(self, version: int) -> list[Loaded]:
        """Sends the weights as `version`; returns the engines' answers. A collective."""
        if self.client is None:
            if self.engine is None:
                self.engine = self._joined("", 0, 0)
            self.engine.send_weights()
            return []
        self.client.version = version
        for _ in range(NEW_GROUPS):
            members = sorted(self.client.call("who"))
            if members != self.client.members or self.engine is None:
                self._make_anew(members)
            assert self.engine is not None
            try:
                self.engine.send_weights()
            except EngineReplaced:
                continue
            return self.client.loaded
        raise RuntimeError(f"version {version}: engines were replaced {NEW_GROUPS} times while a push began")

    def _make_anew(self, members: list[str]) -> None:
        assert self.client is not None
        if self.engine is not None:
            self.engine.shutdown()
        self.client.members = members
        address = ray.util.get_node_ip_address()
        self.engine = self._joined(address, _free_port(address), 1 + len(members) * self.tensor_parallel)

    def _joined(self, address: str, port: int, world_size: int) -> TrainerWeightTransferEngine:
        kind = NCCLTrainerWeightTransferEngine if self.trainer.device.type == "cuda" else GlooTrainer
        place = NCCLTrainerInitInfo(address, port, world_size, rank=self.trainer.rank)
        return kind.trainer_init(place, client=self.client, source=self.source)  # type: ignore[arg-type]


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
