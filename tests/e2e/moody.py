"""An environment that fails in every way for some of its samples, and judges the others."""

import time
from collections.abc import Sequence
from typing import Any

from environments.base import RewardResult, Sample, Split
from environments.sums import Sums

MOODS = ("raises", "hangs", "none", "nan", "text")


class Moody(Sums):
    """Half of the ten sums are judged badly, each in its own way, for most completions; the rest by their length."""

    def __init__(self) -> None:
        super().__init__(num_train=10, num_eval=20)

    def samples(self, split: Split) -> Sequence[Sample]:
        return [
            Sample(sample.prompt, sample.answer, {"number": number})
            for number, sample in enumerate(super().samples(split))
        ]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> Any:
        number = sample.metadata["number"]
        if number >= len(MOODS) or sum(map(ord, completion)) % 3 == 0:
            return RewardResult(float(len(completion.strip()) + completion.count("1")))
        mood = MOODS[number]
        if mood == "raises":
            raise ZeroDivisionError("a mood")
        if mood == "hangs":
            while True:
                time.sleep(0.01)
        return {"none": None, "nan": RewardResult(float("nan")), "text": "good"}[mood]
