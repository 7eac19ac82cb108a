"""One rank's share of a step, as the trainer backend receives it: packs of whole samples, on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch


@dataclass(frozen=True)
class Pack:
    """One micro-batch: T tokens of S samples in one sequence, N of them trained.

    token_ids, position_ids: (1, T), positions restart at 0 with each sample, which is all that keeps samples apart.
    sources: (N,) places whose logits predict a trained token; targets: (N,) those tokens; the others are (N,) too.
    sequences: which sample of the rank's share a token belongs to. A dummy pack has N = 0, one token and one source.
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


def read_share(table: pa.Table) -> TrainerData:
    """A row of `batch.SHARE` → packs on the CPU."""
    row = {name: table.column(name)[0] for name in table.column_names}
    flat = {name: _array(row[name]) for name in FLAT}
    packs = iter([_pack(flat, *bounds) for bounds in _bounds(row)])
    updates = [[next(packs) for _ in range(count)] for count in row["update_packs"].as_py()]
    return TrainerData(
        step=row["step"].as_py(),
        updates=updates,
        sample_ids=row["sample_ids"].as_py(),
        groups=row["groups"].as_py(),
        samples_message=row["samples_message"].as_py(),
    )


FLAT = ("sequence_tokens", "advantages", "temperatures", "token_ids", "trained", "rollout_logprobs", "versions")


def _array(scalar: Any) -> np.ndarray:
    return scalar.values.to_numpy(zero_copy_only=False)


def _bounds(row: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """First and last-plus-one sequence of each pack."""
    start = 0
    for count in row["pack_sequences"].as_py():
        yield start, start + count
        start += count


def _pack(flat: dict[str, np.ndarray], first: int, last: int) -> Pack:
    if first == last:
        return _dummy()
    lengths = flat["sequence_tokens"][first:last].astype(np.int64)
    offset = int(flat["sequence_tokens"][:first].sum())
    tokens = slice(offset, offset + int(lengths.sum()))
    sequences = np.repeat(np.arange(first, last), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    where = np.flatnonzero(flat["trained"][tokens])
    if (positions[where] == 0).any():
        raise ValueError("a sample begins with a trained token: there is no logit that predicts it")
    ids = torch.from_numpy(flat["token_ids"][tokens].astype(np.int64))
    return Pack(
        token_ids=ids[None],
        position_ids=torch.from_numpy(positions)[None],
        sources=torch.from_numpy(where - 1),
        targets=ids[torch.from_numpy(where)],
        advantages=torch.from_numpy(flat["advantages"][sequences[where]].astype(np.float32)),
        rollout_logprobs=torch.from_numpy(flat["rollout_logprobs"][tokens][where].astype(np.float32)),
        versions=torch.from_numpy(flat["versions"][tokens][where].astype(np.int64)),
        sequences=torch.from_numpy(sequences[where]),
        padding_tokens=0,
        temperatures=_temperatures(flat["temperatures"][first:last], flat["temperatures"][sequences[where]]),
    )


def _temperatures(of_sequences: np.ndarray, of_tokens: np.ndarray) -> float | torch.Tensor:
    if (of_sequences == of_sequences[0]).all():
        return float(of_sequences[0])
    return torch.from_numpy(of_tokens.astype(np.float32))[:, None]


def _dummy() -> Pack:
    """A micro-batch that trains nothing: every rank must take part in each collective."""
    nothing, none = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    one = torch.zeros((1, 1), dtype=torch.long)
    return Pack(one, one, one[0], none, nothing, nothing, none, none, padding_tokens=1)
