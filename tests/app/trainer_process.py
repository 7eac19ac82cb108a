"""One rank of tests/app/test_trainer.py: trains synthetic batches and prints the values of each step as JSON."""

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist

from app import checkpoint, sealed
from app.batch import SHARE, BatchBuilder
from app.checkpoint import ResumePoint
from app.config import Config
from app.trainer import Trainer
from app.trainer_data import read_share
from tests.app.tiny import group, tiny_config

STEPS = 3
PROBE = [1, 5, 9, 20, 7, 30, 3]
"""Token ids whose log-probabilities after the last step are part of the values of a case that saves."""


def batch(config: Config, step: int, empty: bool, nonfinite: bool, shares_prompts: bool) -> Any:
    builder = BatchBuilder(config, step, dist.get_world_size())
    rewards = [0, 0, 0, 0] if empty else [1, 0, 0, 0.5]
    for g in range(4):
        builder.add(_group(10 * step + g, rewards, step))
    share = builder.take().shares[dist.get_rank()]
    if nonfinite:
        share["advantages"] = [float("inf")] * len(share["advantages"])
    return read_share(pa.Table.from_pylist([share], schema=SHARE), shares_prompts)


def _group(group_id: int, rewards: list[float], step: int) -> list[dict[str, Any]]:
    samples = group(group_id, rewards)
    for sample in samples:
        sample["versions"] = [step - 1] * len(sample["token_ids"])
    return samples


def steps_of(case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Trains three steps as the case says. Options that are not the trainer's own are taken out first."""
    names = ("empty_step", "nonfinite_step", "restart_after", "save", "restore", "freeze", "attention")
    empty, nonfinite, restart, save, restore, frozen, attention = (case.pop(name, None) for name in names)
    config = tiny_config(**case, **({"max_discards_per_step": 0} if empty else {}))
    trainer = Trainer(config, str(folder / "model"), torch.device("cpu"))
    if restore:
        assert checkpoint.restore(sealed.newest(folder), trainer).step == STEPS
    for name, parameter in trainer.policy.named_parameters():
        parameter.requires_grad_(frozen is None or frozen not in name)
    if attention:
        trainer.policy.set_attn_implementation(attention)
        trainer.shares_prompts = False
    before = {name: value.clone() for name, value in trainer.full_parameters()}
    values: list[dict[str, Any]] = []
    for step in range(1, STEPS + 1):
        values.append(trainer.train_step(batch(config, step, step == empty, step == nonfinite, trainer.shares_prompts)))
        if step == restart:
            trainer = restarted(config, folder / "model", trainer, step)
    if save:
        save_checkpoint(folder, trainer, STEPS)
        values[-1]["probe"] = trainer.logprobs(PROBE, 1)
        values[-1]["largest"] = str(trainer._largest([math.nan if dist.get_rank() == i else 3.0 for i in range(3)]))
    if frozen:
        values[-1]["moved"] = moved(before, trainer)
    if "dtype" in case:
        values[-1]["master"] = str(next(trainer.policy.parameters()).dtype)
    return values


def moved(before: dict[str, torch.Tensor], trainer: Trainer) -> list[str]:
    """The parts of the model (embed_tokens, layers.0, ...) of which a parameter has changed."""
    changed = [name for name, value in trainer.full_parameters() if not torch.equal(value, before[name])]
    parts = [name.removeprefix("model.").split(".") for name in changed]
    return sorted({".".join(part[:2] if part[0] == "layers" else part[:1]) for part in parts})


def save_checkpoint(folder: Path, trainer: Trainer, step: int) -> None:
    path = checkpoint.write(folder, trainer, step)
    if dist.get_rank() == 0:
        checkpoint.seal(path, trainer, ResumePoint(step), keep_last=1)
    dist.barrier()


def restarted(config: Config, model: Path, trainer: Trainer, step: int) -> Trainer:
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), trainer, step)
        fresh = Trainer(config, str(model), torch.device("cpu"))
        checkpoint.restore(sealed.newest(Path(folder)), fresh)
        return fresh


def main(folder: Path, cases: dict[str, dict[str, Any]]) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=rank, world_size=world)
    torch.set_num_threads(1)
    print(json.dumps({name: steps_of(case, folder) for name, case in cases.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
