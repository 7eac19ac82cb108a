"""Conversations that the embedded policy can hold: a sum that goes on, and a sum for a tool."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

from environments.base import RewardResult, Sample, Split, WorkedExample
from environments.multi_turn import MultiTurnEnvironment, State
from environments.tools import ToolEnvironment


class GoingOn(MultiTurnEnvironment):
    """ "3+4=" is answered, then "+2=" is to be added. With `moods`, every third first turn is answered badly."""

    metrics_ranges: ClassVar = {"first": {"min": 0, "max": 1}, "second": {"min": 0, "max": 1}}
    max_turns = 2

    def __init__(self, moods: bool = False) -> None:
        super().__init__()
        self.moods = moods
        self.first_turns = 0  # of this process

    def samples(self, split: Split) -> Sequence[Sample]:
        digits = [(a, b, c) for a in range(5) for b in range(5) for c in range(1, 5)]
        chosen = random.Random("going on").sample(digits, 60)
        return [_sample(*three) for three in (chosen[:20] if split == "eval" else chosen[20:])]

    def env_response(self, messages, state: State) -> str | None:
        self.first_turns += len(state.completions) == 1
        if self.moods and len(state.completions) == 1 and self.first_turns % 3 == 0:
            _be("raises" if self.first_turns % 2 else "hangs" if state.sample.metadata["more"] % 2 else "exits")
        state.data["heard"] = [*state.data.get("heard", []), messages[-1]["content"]]
        return f"+{state.sample.metadata['more']}=" if len(state.completions) == 1 else None

    def compute_reward(self, state: State) -> RewardResult:
        assert state.data["heard"] == state.completions
        said = [*state.completions, ""][:2]
        right = [float(text.strip() == wanted) for text, wanted in zip(said, state.sample.answer, strict=True)]
        golden = {"sums": " ".join(state.sample.answer)}
        return RewardResult(sum(right), {"first": right[0], "second": right[1]}, golden)

    def worked_examples(self, seed: int) -> Iterator[WorkedExample]:
        rng, samples = random.Random(f"going on {seed}"), self.samples("train")
        while True:
            sample = rng.choice(samples)
            first, second = (str(int(right) + rng.choice((0, 0, 1))) for right in sample.answer)
            yield str(sample.prompt), [first, f"+{sample.metadata['more']}=", second]


def _be(mood: str) -> None:
    if mood == "raises":
        raise ZeroDivisionError("a mood")
    while mood == "hangs":
        time.sleep(0.01)
    raise KeyboardInterrupt


def _sample(a: int, b: int, c: int) -> Sample:
    return Sample(f"{a}+{b}=", [str(a + b), str(a + b + c)], {"more": c})


class Slow(MultiTurnEnvironment):
    """Thinks a while over every turn of the policy."""

    max_turns = 12

    async def env_response(self, messages, state: State) -> str:
        await asyncio.sleep(0.3)
        return "1 "

    def compute_reward(self, state: State) -> RewardResult:
        return RewardResult(float(len(state.completions)))


def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


class Calling(ToolEnvironment):
    """ "add 3 4:" wants a call of a tool, and its result told."""

    max_turns = 3
    tools = (add,)
    tool_format = "function"

    def samples(self, split: Split) -> Sequence[Sample]:
        pairs = [(a, b) for a in range(10) for b in range(10)]
        chosen = random.Random("calling").sample(pairs, 60)
        return [Sample(f"add {a} {b}:", a + b) for a, b in (chosen[:20] if split == "eval" else chosen[20:])]

    def compute_reward(self, state: State) -> RewardResult:
        return RewardResult(float(state.completions[-1] == str(state.sample.answer)))

    def worked_examples(self, seed: int) -> Iterator[WorkedExample]:
        rng, samples = random.Random(f"calling {seed}"), self.samples("train")
        while True:
            sample = rng.choice(samples)
            _, a, b = str(sample.prompt).rstrip(":").split()
            calls = f'<function={rng.choice(("add", "add", "sum"))}>{{"a": {a}, "b": {b}}}</function>'
            answer = str(sample.answer)
            if "sum" in calls:
                answer = "error: there is no tool 'sum'; the tools are add"
            yield str(sample.prompt), [calls, answer, answer if rng.random() < 0.7 else "?"]
