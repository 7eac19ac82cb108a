"""Trainer backends of a user's own, as tests name them in a config."""

import math

import torch

from app.config import Config
from app.trainer import Trainer
from app.trainer_data import TrainerData


class WithOwnMetrics(Trainer):
    """Returns a metric that nobody registered."""

    def train_step(self, trainer_data: TrainerData) -> dict[str, float]:
        values = super().train_step(trainer_data)
        own = [pack.advantages.max().item() for pack in trainer_data.packs if pack.advantages.numel()]
        # One pack may hold all samples of a step: the other rank has none.
        return values | {"mine/batch/largest advantage": self._largest([max(own, default=-math.inf)])[0]}


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
