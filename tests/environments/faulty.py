"""Environments with one fault each, which a check must find. Imported by name in other processes."""

import os
import random
import sys
import time
from typing import ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment
from environments.multi_turn import MultiTurnEnvironment

NUM = 20


class Sound(SingleTurnEnvironment):
    """Nothing is wrong with it."""

    metrics_ranges: ClassVar = {"exact": {"min": 0, "max": 1}}

    def samples(self, split):
        first = 0 if split == "train" else NUM
        return [Sample(f"Say {number}.", str(number)) for number in range(first, first + NUM)]

    def compute_reward(self, completion, sample, eos_token=""):
        right = float(completion == sample.answer)
        return RewardResult(right, {"exact": right})

    def gold_completion(self, sample):
        return sample.answer


class SameId(Sound):
    def samples(self, split):
        return [*super().samples(split), Sample("Say 1.", "1")]


class NoSplit(Sound):
    def samples(self, split):
        return super().samples("train")


class NoEval(Sound):
    def samples(self, split):
        return super().samples(split) if split == "train" else []


class FromSet(Sound):
    def samples(self, split):
        return [Sample(f"Say {word}.", word) for word in {f"{split}{number}" for number in range(NUM)}]


class Unseeded(Sound):
    def samples(self, split):
        return [Sample(f"{split} {random.random()}", "1") for _ in range(NUM)]


class WrongGold(Sound):
    def gold_completion(self, sample):
        return sample.answer if int(sample.answer) % 4 else f"{sample.answer}."


class NoGold(Sound):
    def gold_completion(self, sample):
        return None


class OddGold(Sound):
    def gold_completion(self, sample):
        return 7


class Generous(Sound):
    """As much for nothing as for the right answer."""

    def compute_reward(self, completion, sample, eos_token=""):
        return RewardResult(1.0, {"exact": 1.0})


class Constant(Generous):
    def gold_completion(self, sample):
        return None


class OutOfRange(Sound):
    def compute_reward(self, completion, sample, eos_token=""):
        return RewardResult(float(completion == sample.answer), {"exact": float(len(completion))})


class SometimesNamed(Sound):
    def compute_reward(self, completion, sample, eos_token=""):
        return RewardResult(float(completion == sample.answer), {"exact": 1.0} if completion else {})


class Undeclared(Sound):
    def compute_reward(self, completion, sample, eos_token=""):
        return RewardResult(float(completion == sample.answer), {"exact": 1.0, "length": float(len(completion))})


class Moody(Sound):
    """Another reward each time it is asked."""

    def compute_reward(self, completion, sample, eos_token=""):
        return RewardResult(time.monotonic() if completion == sample.answer else 0.0)


class Slow(Sound):
    def compute_reward(self, completion, sample, eos_token=""):
        time.sleep(0.25)
        return super().compute_reward(completion, sample)


class Hangs(Sound):
    def compute_reward(self, completion, sample, eos_token=""):
        if not completion:
            time.sleep(60)
        return super().compute_reward(completion, sample)


class Raises(Sound):
    def compute_reward(self, completion, sample, eos_token=""):
        return RewardResult(float(1 / len(completion) > 0))


class ExitsWhileListing(Sound):
    def samples(self, split):
        print("a last word")
        sys.stdout.flush()
        os._exit(7)


class HangsWhileListing(Sound):
    def samples(self, split):
        time.sleep(60)


class NoList(Sound):
    def samples(self, split):
        return (sample for sample in super().samples(split))


class DictsForSamples(Sound):
    def samples(self, split):
        return [*super().samples(split), {"prompt": "Say 1."}]


class TupleInMemory(MultiTurnEnvironment):
    """Its memory would not survive a turn of a run."""

    max_turns = 2
    samples = Sound.samples

    def env_response(self, messages, state):
        state.data["heard"] = (*state.data.get("heard", ()), messages[-1]["content"])
        return "On."

    def compute_reward(self, state):
        return RewardResult(float(len(state.data["heard"]) == 1))


class NoJson(NoGold):
    def samples(self, split):
        return [Sample("p", {1, 2})]


class Empty(Sound):
    def samples(self, split):
        return []


class Prints(Sound):
    def samples(self, split):
        print('{"failed": "by a print"}')
        return super().samples(split)
