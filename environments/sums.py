"""sums: add a few digits, written with two digits. Small enough for a model of three million parameters.

The total reward is 1 for the right sum, else 0.

The worked examples are of mixed quality, as if from pupils who can add but often forget to carry: most write only
the ones digit of the sum ("3+8+6+2=" gives "09" and not "19"). A policy warmed up on them knows how to add and does
it wrong most of the time; which of its two habits is right, it can only learn from the reward.
"""

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split

MAX_TERMS = 10


class Sums(SingleTurnEnvironment):
    """Both digits of a sum are metrics of their own: the tens digit is where the carry shows."""

    metrics_ranges: ClassVar = {"tens": {"min": 0, "max": 1}, "ones": {"min": 0, "max": 1}}

    def __init__(
        self, terms: int = 4, num_train: int = 4_000, num_eval: int = 500, careful: float = 0.3, seed: int = 0
    ) -> None:
        if not 2 <= terms <= MAX_TERMS:
            raise ValueError(f"terms must be 2 to {MAX_TERMS}, got {terms}")
        if num_train < 1 or num_eval < 1 or num_train + num_eval > 10**terms:
            raise ValueError(
                f"there are {10**terms} sums of {terms} digits: num_train and num_eval must be at least 1 "
                f"and together no more, got {num_train} and {num_eval}"
            )
        if not 0 <= careful <= 1:
            raise ValueError(f"careful is a share of the worked examples, 0 to 1, got {careful}")
        self.terms, self.careful = terms, careful
        drawn = random.Random(f"sums {seed}").sample(range(10**terms), num_train + num_eval)
        self._held_out, self._train = drawn[:num_eval], drawn[num_eval:]

    def samples(self, split: Split) -> Sequence[Sample]:
        return [_sample(self._digits(number)) for number in (self._held_out if split == "eval" else self._train)]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        wanted, got = sample.answer, completion.removesuffix(eos_token).strip()
        tens, ones = (float(a == b) for a, b in zip(wanted, got.rjust(2)[-2:], strict=True))
        return RewardResult(float(got == wanted), {"tens": tens, "ones": ones}, {"sum": wanted})

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        rng = random.Random(f"sums worked {seed}")
        held_out = set(self._held_out)
        while True:
            number = rng.randrange(10**self.terms)
            careful = rng.random() < self.careful
            if number not in held_out:
                sample = _sample(self._digits(number))
                yield str(sample.prompt), sample.answer if careful else "0" + sample.answer[1]

    def _digits(self, number: int) -> str:
        return f"{number:0{self.terms}d}"


def _sample(digits: str) -> Sample:
    return Sample("+".join(digits) + "=", f"{sum(map(int, digits)):02d}")
