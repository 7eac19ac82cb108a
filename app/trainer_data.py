"""One rank's share of a step, as the trainer backend receives it: packs of whole samples, on the device."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from app.attention import Layout


@dataclass(frozen=True)
class Pack:
    """One micro-batch: R rows of T tokens, N of them trained.

    A row is one sample and padding after it, or R is 1 and samples follow each other: by `layout`, where a prompt
    stands once for several, else each with its prompt. token_ids, position_ids: (R, T); positions count in the sample.
    sources: (N,) places in the R x T tokens whose logits predict a trained token; targets: (N,) those tokens; the
    others are (N,) too. sequences: which sample of the rank's share a token belongs to.
    A dummy pack has N = 0, one token and one source.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    sources: torch.Tensor
    targets: torch.Tensor
    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor
    versions: torch.Tensor
    sequences: torch.Tensor
    padding_tokens: int
    layout: Layout | None = None
    temperatures: float | torch.Tensor = 1.0
    """Sampling temperature: one of all, or (N, 1) where they differ."""

    def to(self, device: torch.device) -> "Pack":
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class TrainerData:
    """What `train_step` gets. `updates` are lists of packs, one optimiser update each.

    version: the weights version being trained, i.e. the updates of the policy so far. sample_ids: of this rank.
    groups: every group that the step used up on all ranks. samples_message: where the step's rows are.
    """

    step: int
    updates: list[list[Pack]]
    sample_ids: list[int]
    groups: list[int]
    samples_message: int

    @property
    def version(self) -> int:
        return self.step - 1

    @property
    def packs(self) -> list[Pack]:
        return [pack for update in self.updates for pack in update]


def read_share(table: pa.Table, shares_prompts: bool = True) -> TrainerData:
    """A row of `batch.SHARE` → packs on the CPU. shares_prompts: the policy's attention is app.attention's."""
    row = {name: table.column(name)[0] for name in table.column_names}
    flat = {name: _array(row[name]) for name in FLAT}
    padded = row["padded"].as_py()
    lay = _pad if padded else _share_prompts if shares_prompts else _line_up
    packs = iter([_pack(flat, *bounds, lay) for bounds in _bounds(row)])
    updates = [[next(packs) for _ in range(count)] for count in row["update_packs"].as_py()]
    return TrainerData(
        step=row["step"].as_py(),
        updates=updates,
        sample_ids=row["sample_ids"].as_py(),
        groups=row["groups"].as_py(),
        samples_message=row["samples_message"].as_py(),
    )


FLAT = (
    "sequence_tokens", "prompt_tokens", "advantages", "temperatures",
    "token_ids", "trained", "rollout_logprobs", "versions",
)  # fmt: skip


def _array(scalar: Any) -> np.ndarray:
    return scalar.values.to_numpy(zero_copy_only=False)


def _bounds(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """First and last-plus-one sequence of each pack."""
    start = 0
    for count in row["pack_sequences"].as_py():
        yield start, start + count
        start += count


@dataclass(frozen=True)
class Sequences:
    """Samples one after the other, each with its prompt: ids and positions of the tokens, lengths of the samples."""

    ids: np.ndarray
    positions: np.ndarray
    lengths: np.ndarray
    prompts: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        return self.lengths.cumsum() - self.lengths


@dataclass(frozen=True)
class Laid:
    """Rows of tokens: `places` says where in the R x T each token of the samples went."""

    places: np.ndarray
    token_ids: np.ndarray
    position_ids: np.ndarray
    layout: Layout | None = None
    padding: int = 0


def _pack(flat: dict[str, np.ndarray], first: int, last: int, lay: Callable[[Sequences], Laid]) -> Pack:
    if first == last:
        return _dummy()
    lengths = flat["sequence_tokens"][first:last].astype(np.int64)
    offset, total = int(flat["sequence_tokens"][:first].sum()), int(lengths.sum())
    tokens = slice(offset, offset + total)
    sequences = np.repeat(np.arange(first, last), lengths)
    positions = np.arange(total) - np.repeat(lengths.cumsum() - lengths, lengths)
    where = np.flatnonzero(flat["trained"][tokens])
    if (positions[where] == 0).any():
        raise ValueError("a sample begins with a trained token: there is no logit that predicts it")
    ids = flat["token_ids"][tokens].astype(np.int64)
    laid = lay(Sequences(ids, positions, lengths, flat["prompt_tokens"][first:last].astype(np.int64)))
    return Pack(
        token_ids=torch.from_numpy(laid.token_ids),
        position_ids=torch.from_numpy(laid.position_ids),
        sources=torch.from_numpy(laid.places[where - 1]),
        targets=torch.from_numpy(ids[where]),
        advantages=torch.from_numpy(flat["advantages"][sequences[where]].astype(np.float32)),
        rollout_logprobs=torch.from_numpy(flat["rollout_logprobs"][tokens][where].astype(np.float32)),
        versions=torch.from_numpy(flat["versions"][tokens][where].astype(np.int64)),
        sequences=torch.from_numpy(sequences[where]),
        padding_tokens=laid.padding,
        layout=laid.layout,
        temperatures=_temperatures(flat["temperatures"][first:last], flat["temperatures"][sequences[where]]),
    )


def _temperatures(of_sequences: np.ndarray, of_tokens: np.ndarray) -> float | torch.Tensor:
    if (of_sequences == of_sequences[0]).all():
        return float(of_sequences[0])
    return torch.from_numpy(of_tokens.astype(np.float32))[:, None]


def _line_up(given: Sequences) -> Laid:
    return Laid(np.arange(len(given.ids)), given.ids[None], given.positions[None])


def _share_prompts(given: Sequences) -> Laid:
    """The prompt of neighbours that have the same one stands once, before all of them."""
    starts, ends = given.starts, given.starts + given.prompts
    texts = [given.ids[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    owners = np.arange(len(texts))  # the sample with whose prompt a sample's own is computed
    for i in range(1, len(texts)):
        if texts[i] == texts[i - 1]:
            owners[i] = owners[i - 1]
    of_sample = np.repeat(np.arange(len(texts)), given.lengths)
    in_prompt = given.positions < given.prompts[of_sample]
    kept = ~in_prompt | (owners[of_sample] == of_sample)
    # A prompt token that is left out is where that of the owner is.
    same = np.where(in_prompt, starts[owners][of_sample] + given.positions, np.arange(len(given.ids)))
    places = (kept.cumsum() - 1)[same]
    after = given.lengths - given.prompts
    prompts = [(int(given.prompts[i]), after[owners == i].tolist()) for i in np.unique(owners)]
    return Laid(places, given.ids[kept][None], given.positions[kept][None], Layout(prompts))


def _pad(given: Sequences) -> Laid:
    """A row a sample, as wide as the longest."""
    width, count = int(given.lengths.max()), len(given.lengths)
    places = np.repeat(np.arange(count) * width, given.lengths) + given.positions
    token_ids = np.zeros((count, width), dtype=np.int64)
    token_ids.flat[places] = given.ids
    positions = np.tile(np.arange(width), (count, 1))
    return Laid(places, token_ids, positions, padding=token_ids.size - len(given.ids))


def _dummy() -> Pack:
    """A micro-batch that trains nothing: every rank must take part in each collective."""
    nothing, none = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    one = torch.zeros((1, 1), dtype=torch.long)
    return Pack(one, one, one[0], none, nothing, nothing, none, none, padding_tokens=1)
