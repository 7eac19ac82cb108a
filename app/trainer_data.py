"""One rank's share of a step, as the trainer backend receives it: packs of whole samples, on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch


@dataclass(frozen=True)
class Pack:
    """One micro-batch: R rows of T tokens, N of them trained.

    A row is one sample and padding after it, or R is 1 and samples follow each other. token_ids, position_ids: (R, T);
    positions restart at 0 with each sample, which is all that keeps samples of one row apart.
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
    padded = row["padded"].as_py()
    packs = iter([_pack(flat, *bounds, padded) for bounds in _bounds(row)])
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


def _pack(flat: dict[str, np.ndarray], first: int, last: int, padded: bool) -> Pack:
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
    places, token_ids, position_ids = _laid_out(ids, lengths, positions, padded)
    return Pack(
        token_ids=torch.from_numpy(token_ids),
        position_ids=torch.from_numpy(position_ids),
        sources=torch.from_numpy(places[where] - 1),
        targets=torch.from_numpy(ids[where]),
        advantages=torch.from_numpy(flat["advantages"][sequences[where]].astype(np.float32)),
        rollout_logprobs=torch.from_numpy(flat["rollout_logprobs"][tokens][where].astype(np.float32)),
        versions=torch.from_numpy(flat["versions"][tokens][where].astype(np.int64)),
        sequences=torch.from_numpy(sequences[where]),
        padding_tokens=token_ids.size - total,
        temperatures=_temperatures(flat["temperatures"][first:last], flat["temperatures"][sequences[where]]),
    )


def _temperatures(of_sequences: np.ndarray, of_tokens: np.ndarray) -> float | torch.Tensor:
    if (of_sequences == of_sequences[0]).all():
        return float(of_sequences[0])
    return torch.from_numpy(of_tokens.astype(np.float32))[:, None]


def _laid_out(
    ids: np.ndarray, lengths: np.ndarray, positions: np.ndarray, padded: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(place of each token in the R x T ones, (R, T) token ids, (R, T) positions)."""
    if not padded:
        return np.arange(len(ids)), ids[None], positions[None]
    width = int(lengths.max())
    places = np.repeat(np.arange(len(lengths)) * width, lengths) + positions
    token_ids = np.zeros((len(lengths), width), dtype=np.int64)
    token_ids.flat[places] = ids
    return places, token_ids, np.tile(np.arange(width), (len(lengths), 1))


def _dummy() -> Pack:
    """A micro-batch that trains nothing: every rank must take part in each collective."""
    nothing, none = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    one = torch.zeros((1, 1), dtype=torch.long)
    return Pack(one, one, one[0], none, nothing, nothing, none, none, padding_tokens=1)
