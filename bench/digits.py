"""The benchmark's environment: the reward is the share of digits among the characters of a completion."""

from collections.abc import Iterator, Sequence

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split


class Digits(SingleTurnEnvironment):
    """Long completions and a reward that costs nothing, so that what is measured is the loop."""

    def samples(self, split: Split) -> Sequence[Sample]:
        return [Sample(f"say {number} digits: ") for number in range(100, 600 if split == "train" else 110)]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        return RewardResult(sum(c.isdigit() for c in completion) / max(1, len(completion)))

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        while True:
            for number in range(10, 100):
                yield f"say {number} digits: ", f"{number} {number + 1}, but words are also fine here, are they not?"
