"""Trainer backends of a user's own, as tests name them in a config."""

from typing import Any

import torch

from app.config import Config
from app.trainer import Trainer
from app.trainer_data import TrainerData


class WithOwnMetrics(Trainer):
    """Returns a metric that nobody registered."""

    def train_step(self, trainer_data: TrainerData) -> dict[str, float]:
        values = super().train_step(trainer_data)
        return values | {"mine/batch/largest advantage": _largest(trainer_data)}


class DiesInStepThree(WithOwnMetrics):
    """Fails in step 3, unless it has been resumed since."""

    def __init__(self, config: Config, model: str, device: torch.device) -> None:
        super().__init__(config, model, device)
        self.calls = 0

    def train_step(self, trainer_data: TrainerData) -> dict[str, float]:
        self.calls += 1
        if self.calls == 3:
            raise ArithmeticError("step 3 is my last")
        return super().train_step(trainer_data)


def _largest(trainer_data: TrainerData) -> Any:
    return max(pack.advantages.max().item() for pack in trainer_data.packs if pack.advantages.numel())
