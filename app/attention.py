"""Attention for packed samples: a prompt is computed once for all its samples, and samples do not meet.

For layers that take their attention by name from transformers, which hands `layout` through to it. The samples of a
group have the same prompt: in a row it stands once, and what follows it in each sample comes after it. A token sees the
prompt and its own sample up to itself, as if the sample stood alone: positions and results are the same (Prefix
Grouper, arXiv 2506.05433).
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "telescope"
UNKNOWN = ("attention_mask", "softcap", "s_aux")
LAYER_TYPES = {"full_attention", "sliding_attention"}
UNTOLD = -1
REMEDY = "the trainer's attention of packed samples does not know; set packing=false, or use another model"


class Layout:
    """How the tokens of a row follow each other: (tokens of a prompt, tokens after it in each of its samples)."""

    def __init__(self, prompts: list[tuple[int, list[int]]]) -> None:
        self.prompts = prompts
        self.calls = 0  # of `attend`: a policy that does not use it would let samples see each other

    def slices(self) -> Iterator[tuple[slice, list[slice]]]:
        """The places of each prompt and of its continuations in the row."""
        at = 0

        def after(length: int) -> slice:
            nonlocal at
            at += length
            return slice(at - length, at)

        for prompt, continuations in self.prompts:
            yield after(prompt), [after(length) for length in continuations]

    def longest(self) -> int:
        """Tokens of the longest sample."""
        return max(prompt + max(continuations, default=0) for prompt, continuations in self.prompts)


def check(config: PreTrainedConfig) -> None:
    """Raises NotImplementedError for a model with layers through which packed samples would see each other."""
    types = getattr(config.get_text_config(), "layer_types", None) or ()
    if others := sorted(set(types) - LAYER_TYPES):
        raise NotImplementedError(f"model {config.name_or_path!r} has layers of {', '.join(others)}, which {REMEDY}")


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = UNTOLD,
    **others: Any,
) -> tuple[Tensor, None]:
    """(R, heads, T, d) queries, keys and values → (R, T, heads, d). Without a layout each row is one sample.

    Raises NotImplementedError for kinds of attention that this is not.
    """
    for name, given in {"attention_mask": attention_mask, **others}.items():
        if name in UNKNOWN and given is not None:
            raise NotImplementedError(f"{type(module).__name__} has {name}, which {REMEDY}")
    layout = layout or Layout([(key.shape[2], [])])
    layout.calls += 1
    if sliding_window == UNTOLD:  # some models say it only in the mask that transformers makes
        sliding_window = None
        if layout.longest() > (getattr(module.config, "sliding_window", None) or math.inf):
            raise NotImplementedError(f"{type(module).__name__} has a sliding window, which {REMEDY}")

    def one(rows: slice, keys: Tensor, values: Tensor) -> Tensor:
        return _causal(query[:, :, rows], keys, values, scaling, dropout, sliding_window)

    parts = []
    for prompt, continuations in layout.slices():
        of_prompt = key[:, :, prompt], value[:, :, prompt]
        parts.append(one(prompt, *of_prompt))
        for rows in continuations:
            own = key[:, :, rows], value[:, :, rows]
            parts.append(one(rows, *(torch.cat(pair, 2) for pair in zip(of_prompt, own, strict=True))))
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def _causal(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, dropout: float, window: int | None
) -> Tensor:
    """Queries are the last ones of the keys' tokens; each sees the keys up to its own, `window` of them at most."""
    rows, width = query.shape[2], key.shape[2]
    earlier = width - rows
    mask = None
    if earlier or (window or width) < width:
        mask = torch.ones((rows, width), dtype=torch.bool, device=query.device).tril(earlier)
        if window is not None:
            mask = mask.triu(earlier - window + 1)
    if mask is not None and query.is_cuda:  # with a mask and grouped heads CUDA has the slow kernel only
        key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in (key, value))
    return scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
