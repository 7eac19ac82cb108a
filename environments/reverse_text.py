"""reverse_text: write a short word backwards. The smallest environment."""

import random
from collections.abc import Sequence
from string import ascii_lowercase
from typing import ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split

NUM_EVAL = 200


class ReverseText(SingleTurnEnvironment):
    """Total reward 0 to 1: the share of letters that stand in the right place."""

    metrics_ranges: ClassVar = {"exact": {"min": 0, "max": 1}}

    def __init__(self, length: int = 4, num_train: int = 2_000, seed: int = 0) -> None:
        if not 1 < length <= 64:
            raise ValueError(f"length must be 2 to 64 letters, got {length}")
        if not 0 < num_train <= 26**length // 2 - NUM_EVAL:
            raise ValueError(f"num_train must be 1 to {26**length // 2 - NUM_EVAL} words, got {num_train}")
        self.length, self.num_train, self.seed = length, num_train, seed

    def samples(self, split: Split) -> Sequence[Sample]:
        rng = random.Random(f"reverse_text {self.seed} {self.length}")
        words: dict[str, None] = {}
        while len(words) < NUM_EVAL + self.num_train:
            words["".join(rng.choices(ascii_lowercase, k=self.length))] = None
        chosen = list(words)[:NUM_EVAL] if split == "eval" else list(words)[NUM_EVAL:]
        return [Sample(f"reverse {word}: ", word[::-1]) for word in chosen]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        wanted, got = sample.answer, completion.removesuffix(eos_token).strip()
        right = sum(a == b for a, b in zip(wanted, got, strict=False))
        reward = right / max(len(wanted), len(got))
        return RewardResult(reward, {"exact": float(got == wanted)}, {"reversed": wanted})

    def gold_completion(self, sample: Sample) -> str:
        return sample.answer
