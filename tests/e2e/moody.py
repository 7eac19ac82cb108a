"""An environment that fails in every way for some of its samples, and judges the others."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from environments.base import RewardResult, Sample, Split
from environments.sums import Sums

MOODS = ("raises", "hangs", "none", "nan", "text")


class Moody(Sums):
    """Every fifth sum is judged badly, each in its own way; the rest by the number of its characters."""

    def __init__(self, num_train: int = 200) -> None:
        super().__init__(num_train=num_train, num_eval=20)

    def samples(self, split: Split) -> Sequence[Sample]:
        return [
            Sample(sample.prompt, sample.answer, {"number": number})
            for number, sample in enumerate(super().samples(split))
        ]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> Any:
        number = sample.metadata["number"]
        if number % 5 or hash(completion) % 2:
            return RewardResult(float(len(completion.strip()) + completion.count("1")))
        mood = MOODS[number // 5 % len(MOODS)]
        if mood == "raises":
            raise ZeroDivisionError("a mood")
        if mood == "hangs":
            while True:
                time.sleep(0.01)
        return {"none": None, "nan": RewardResult(float("nan")), "text": "good"}[mood]

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        return super().worked_examples(seed)
