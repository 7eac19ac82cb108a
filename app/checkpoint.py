"""Checkpoints: model, optimiser, counters, random state and the place in the prompts; whole or not at all.

checkpoints/step_000020/              written by all ranks (torch.distributed.checkpoint)
checkpoints/step_000020/place.json    the seal, written last: a folder without it is not a checkpoint
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from app.admission import Cursor
from app.run_dir import write_atomically
from app.sealed import PLACE, step_of, whole
from app.trainer import Trainer


class CheckpointError(RuntimeError):
    """A checkpoint could not be written. The one before it still counts."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run stands: optimiser steps behind it, and which groups have been used up."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)


def write(folder: Path, trainer: Trainer, step: int) -> Path:
    """Writes the weights and the optimiser's state after `step`. A collective. Not a checkpoint until it is sealed.

    Raises CheckpointError on every rank when one could not write, as on a full disk.
    """
    path = folder / f"step_{step:06d}"
    model, optimizer = get_state_dict(trainer.policy, trainer.optimizer)
    try:
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=path)
    except CheckpointException as error:  # no Exception: whoever waits for one would not hear of it
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(f"rank {rank} could not write {path}: {type(cause).__name__}: {cause}") from error
    return path


def seal(path: Path, trainer: Trainer, point: ResumePoint, keep_last: int, keep_every: int = 0) -> None:
    """Makes what was written a checkpoint, and removes older ones beyond `keep_last` and not of a multiple of
    `keep_every`.

    For one rank, after the step is logged: a resume would not make its numbers again.
    """
    _write_seal(path / PLACE, trainer, point)
    for old in whole(path.parent)[:-keep_last]:
        if keep_every and step_of(old) % keep_every == 0:
            continue
        (old / PLACE).unlink()  # first, so that a half-removed folder is not taken for a checkpoint
        shutil.rmtree(old)


def restore(path: Path, trainer: Trainer) -> ResumePoint:
    """Loads a checkpoint into the trainer, whatever number of ranks wrote it. A collective."""
    model, optimizer = get_state_dict(trainer.policy, trainer.optimizer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        trainer.policy,
        trainer.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    saved = json.loads((path / PLACE).read_text())
    trainer.updates = saved["updates"]
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(saved["rng"])), dtype=torch.uint8))
    return ResumePoint(saved["step"], Cursor(saved["next_group"], tuple(saved["missing"])))


def _write_seal(file: Path, trainer: Trainer, point: ResumePoint) -> None:
    content = {
        "step": point.step,
        "updates": trainer.updates,
        "next_group": point.cursor.next_group,
        "missing": list(point.cursor.missing),
        "rng": bytes(torch.get_rng_state().tolist()).hex(),
    }
    write_atomically(file, json.dumps(content))
