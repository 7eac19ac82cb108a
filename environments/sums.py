"""sums: add a few small digits and give one number. Small enough for a model of three million parameters.

The total reward is 1 for the right sum and nothing else, else 0.

The worked examples are of mixed quality, as if from pupils who can add but do not trust themselves: most name a
second number as well ("3+1+4+2+0=" gives "10 or 11" and not "10"). A policy warmed up on them, briefly, adds roughly
and hedges mostly. That hedging earns nothing, and which sums it has wrong, it can only learn from the reward.
A problem is its digits in their order: "1+2+0+0+0=" may be trained on while "2+1+0+0+0=" is held out.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split

MAX_TERMS = 10
NUMBER = re.compile(r"[0-9]+")


class Sums(SingleTurnEnvironment):
    """`single`: gave one number only. `first`: the first number it gave is the sum."""

    metrics_ranges: ClassVar = {"single": {"min": 0, "max": 1}, "first": {"min": 0, "max": 1}}

    def __init__(
        self,
        terms: int = 5,
        max_digit: int = 4,
        num_train: int = 2_000,
        num_eval: int = 500,
        sure: float = 0.3,
        seed: int = 0,
    ) -> None:
        if not 2 <= terms <= MAX_TERMS or not 1 <= max_digit <= 9:
            raise ValueError(f"terms must be 2 to {MAX_TERMS} and max_digit 1 to 9, got {terms} and {max_digit}")
        num_sums = (max_digit + 1) ** terms
        if num_train < 1 or num_eval < 1 or num_train + num_eval > num_sums:
            raise ValueError(
                f"there are {num_sums} sums of {terms} digits up to {max_digit}: num_train and num_eval must be "
                f"at least 1 and together no more, got {num_train} and {num_eval}"
            )
        if not 0 <= sure <= 1:
            raise ValueError(f"sure is a share of the worked examples, 0 to 1, got {sure}")
        self.terms, self.base, self.sure = terms, max_digit + 1, sure
        drawn = random.Random(f"sums {seed}").sample(range(num_sums), num_train + num_eval)
        self._held_out, self._train = drawn[:num_eval], drawn[num_eval:]

    def samples(self, split: Split) -> Sequence[Sample]:
        chosen = self._held_out if split == "eval" else self._train
        return [_sample(self._digits(number)) for number in chosen]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        wanted, got = sample.answer, completion.removesuffix(eos_token).strip()
        numbers = NUMBER.findall(got)
        metrics = {"single": float(len(numbers) == 1), "first": float(numbers[:1] == [wanted])}
        return RewardResult(float(got == wanted), metrics, {"sum": wanted})

    def gold_completion(self, sample: Sample) -> str:
        return sample.answer

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        """Of training problems; half of them of a sum drawn evenly, so that rare sums are learnt too."""
        rng = random.Random(f"sums worked {seed}")
        problems = self.samples("train")
        by_sum: dict[str, list[Sample]] = {}
        for sample in problems:
            by_sum.setdefault(sample.answer, []).append(sample)
        while True:
            evenly = by_sum[rng.choice(list(by_sum))]
            sample = rng.choice(evenly if rng.random() < 0.5 else problems)
            is_sure = rng.random() < self.sure
            yield str(sample.prompt), sample.answer + ("" if is_sure else f" or {int(sample.answer) + 1}")

    def _digits(self, number: int) -> list[int]:
        """The digits to add: those of the number, written in base `max_digit` + 1."""
        return [number // self.base**place % self.base for place in range(self.terms)]


def _sample(digits: Sequence[int]) -> Sample:
    return Sample("+".join(map(str, digits)) + "=", str(sum(digits)))
