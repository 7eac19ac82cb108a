"""calculator: work out an expression with a tool that does one step at a time, and say the result.

The total reward is 1 when the last number of the last turn is the result, else 0.
"""

import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar

from environments.base import RewardResult, Sample, Split, WorkedExample
from environments.multi_turn import State
from environments.support.arithmetic import worked_out
from environments.support.data import Sizes
from environments.tools import ToolEnvironment

# 1,234 is one number; a minus after a digit is an operator.
NUMBER = re.compile(r"(?:(?<!\d)-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?", re.ASCII)
MAX_DIGITS = 40


def calculate(expression: str) -> str:
    """Work out arithmetic with + - * / and brackets, exactly.

    expression: such as "(12 + 7) * 3"
    """
    value, _ = worked_out(expression)
    if max(len(str(value.numerator)), len(str(value.denominator))) > MAX_DIGITS:
        raise ValueError(f"the result has more than {MAX_DIGITS} digits")
    return str(value)


class Calculator(ToolEnvironment):
    """`correct`: the result is right. `used_tool`: a call of the tool succeeded."""

    max_turns = 4
    tools = (calculate,)
    metrics_ranges: ClassVar = {"correct": {"min": 0, "max": 1}, "used_tool": {"min": 0, "max": 1}}

    def __init__(
        self, max_number: int = 999, num_train: int = 1_000, num_eval: int = 100, seed: int = 0, plain: bool = False
    ) -> None:
        super().__init__()
        if max_number < 20:
            raise ValueError(f"max_number must be at least 20, got {max_number}")
        self.sizes = Sizes(num_train, num_eval, seed)
        self.max_number, self.plain = max_number, plain

    def samples(self, split: Split) -> Sequence[Sample]:
        """`plain` prompts are texts, for models without a chat template."""
        rng = random.Random(f"calculator {self.sizes.seed}")
        drawn: dict[str, None] = {}
        while len(drawn) < self.sizes.total:
            drawn[_expression(rng, self.max_number)] = None
        return self.sizes.of_made([self._sample(expression) for expression in drawn])[split]

    def compute_reward(self, state: State) -> RewardResult:
        numbers = NUMBER.findall(state.completions[-1]) if state.completions else []
        said = numbers[-1].replace(",", "") if numbers else ""
        correct = 0 < len(said) <= MAX_DIGITS and Fraction(said) == state.sample.answer
        used = self.get_tool_metrics(state)["tool_success_count"] > 0
        metrics = {"correct": float(correct), "used_tool": float(used)}
        return RewardResult(float(correct), metrics, {"result": str(state.sample.answer)})

    def gold_completion(self, sample: Sample) -> Sequence[str]:
        return [_call(sample.metadata["expression"]), str(sample.answer)]

    def worked_examples(self, seed: int) -> Iterator[WorkedExample]:
        rng = random.Random(f"calculator worked {seed}")
        samples = self.samples("train")
        while True:
            sample = rng.choice(samples)
            call, result = self.gold_completion(sample)
            yield str(sample.prompt), [call, result, result]

    def _sample(self, expression: str) -> Sample:
        question = f"What is {expression}?"
        prompt = f"{question} Tool: {_call('1 + 2')}\n" if self.plain else self.instructed(question)
        value, _ = worked_out(expression)
        return Sample(prompt, int(value), {"expression": expression})


def _expression(rng: random.Random, max_number: int) -> str:
    a, b, c = (rng.randint(2, max_number) for _ in range(3))
    return rng.choice((f"{a} + {b} * {c}", f"({a} + {b}) * {c}", f"{a} * {b} - {c}", f"{a} - {b} - {c}"))


def _call(expression: str) -> str:
    return f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}</tool_call>'
