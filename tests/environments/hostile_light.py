"""Environments that need only the standard library."""

import os
import sys

from environments.base import RewardResult, Sample, SingleTurnEnvironment


class Modules(SingleTurnEnvironment):
    """Tells what its process has imported and which of Ray's variables it sees."""

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        heavy = {"ray", "torch", "pyarrow", "numpy"} & set(sys.modules)
        ray = [name for name in os.environ if name.startswith("RAY_")]
        return RewardResult(os.getpid(), {}, {}, {"heavy": ",".join(sorted(heavy)), "ray": ",".join(ray)})


class Picky(SingleTurnEnvironment):
    """Gets everything a sample has, and the end-of-text token."""

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        tags = {"sample": repr((sample.prompt, sample.answer, dict(sample.metadata)))}
        return RewardResult(float(completion.endswith(eos_token)), {}, {}, tags)
