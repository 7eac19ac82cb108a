"""The policy as a sharded PyTorch module: FSDP2 on gloo or NCCL, full parameters gathered one by one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.attention import NAME, Layout, check

CPU = torch.device("cpu")


def build_policy(
    model: str | Path,
    device: torch.device,
    dtype: torch.dtype,
    gradient_checkpointing: bool = False,
    packing: bool = True,
) -> PreTrainedModel:
    """Loads the model in float32 master weights and shards it over all ranks, layer by layer.

    dtype: what is computed in; below float32 it becomes FSDP's mixed precision with float32 reduction. Raises
    NotImplementedError for a model in which packed samples would see each other.
    """
    policy: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation=attention(device, dtype, packing)
    )
    if packing:
        check(policy.config)
    # With a cache the packed sequences would see each other.
    policy.config.use_cache = False
    if gradient_checkpointing:
        policy.gradient_checkpointing_enable()
    return shard(policy.to(device).train(), device, dtype)


def shard(policy: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Shards in place over every rank of the default process group."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("ranks",))
    precision = (
        MixedPrecisionPolicy()
        if dtype == torch.float32
        else MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    )
    # On CPU there is nothing to save by gathering the shards again for the backward pass.
    reshard = device.type == "cuda"
    for layer in policy.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard)
    fully_shard(policy, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard)
    return policy


def attention(device: torch.device, dtype: torch.dtype, packing: bool = True) -> str:
    """Flash attention where it is installed and knows the arithmetic, else our own, which does a prompt once; PyTorch's
    for padded rows."""
    if device.type == "cuda" and dtype != torch.float32:
        from transformers.utils import is_flash_attn_2_available

        if is_flash_attn_2_available():
            return "flash_attention_2"
    return NAME if packing else "sdpa"


def logits_at(
    policy: PreTrainedModel,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    sources: torch.Tensor,
    layout: Layout | None = None,
) -> torch.Tensor:
    """(R, T) tokens, (N,) places in them → (N, V) logits. Only they pass through the output head.

    Raises RuntimeError for a policy in which packed samples would see each other.
    """

    def chosen(head: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        return (arguments[0].flatten(0, 1).index_select(0, sources),)

    # No attention mask and no cache: anything else lets the packed samples see each other.
    told, before = ({}, 0) if layout is None else ({"layout": layout}, layout.calls)
    with policy.get_output_embeddings().register_forward_pre_hook(chosen):
        logits: torch.Tensor = policy(input_ids=token_ids, position_ids=position_ids, use_cache=False, **told).logits
    if layout is not None and (used := layout.calls - before) != (layers := len(policy.model.layers)):
        raise RuntimeError(
            f"{used} of the policy's {layers} layers use the trainer's attention: in the others packed samples would "
            "see each other; set packing=false, or use another model"
        )
    return logits


@torch.no_grad()
def full_parameters(
    policy: PreTrainedModel, dtype: torch.dtype, device: torch.device = CPU
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, whole tensor on `device` in `dtype`) of every parameter; tied ones once.

    Every rank must run it to the end: each parameter is an all-gather.
    """
    for name, parameter in policy.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        yield name, whole.detach().to(device, dtype)


def gradient_norm(policy: PreTrainedModel, limit: float) -> float:
    """Clips the gradients to `limit` and returns the global L2 norm from before. A collective."""
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), limit)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
