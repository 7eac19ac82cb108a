"""An environment from which nothing can be learnt."""

from environments.base import RewardResult, Sample
from environments.sums import Sums


class Constant(Sums):
    """Every completion is as good as any other."""

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        return RewardResult(1.0)
