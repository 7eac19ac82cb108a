"""countdown: reach a target from given numbers with + - * / and brackets, each number at most once.

A prompt asks for the expression in <answer> tags. The total reward is 0 to 2: up to 1 for the form (half for
one pair of tags, the rest for a legal expression in them) and 1 for reaching the target.
"""

import operator
import random
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split
from environments.parts import Part, Parts
from environments.support.arithmetic import worked_out

ANSWER = re.compile(r"<answer>([^<>]*)</answer>")
WHOLE_NUMBERS = re.compile(r"[0-9+\-*/() ]*")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


PARTS = Parts(format=Part(), correct=Part())


class Countdown(SingleTurnEnvironment):
    metrics_ranges: ClassVar = PARTS.ranges

    def __init__(
        self,
        num_numbers: int = 3,
        max_number: int = 20,
        max_target: int = 100,
        num_train: int = 5_000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        for name, value, low, high in (
            ("num_numbers", num_numbers, 2, 6),
            ("max_number", max_number, num_numbers, 1_000),
            ("max_target", max_target, 10, 100_000),
            ("num_train", num_train, 1, 1_000_000),
            ("num_eval", num_eval, 1, 100_000),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} must be {low} to {high}, got {value}")
        self.num_numbers, self.max_number, self.max_target = num_numbers, max_number, max_target
        self.num_train, self.num_eval, self.seed = num_train, num_eval, seed

    def samples(self, split: Split) -> Sequence[Sample]:
        """The first problems drawn are the eval split, so that it stays the same when `num_train` changes."""
        problems: dict[tuple[tuple[int, ...], int], str] = {}
        rng = random.Random(f"countdown {self.seed}")
        wanted = self.num_eval + self.num_train
        for _ in range(100 * wanted):
            if len(problems) == wanted:
                break
            numbers, target, solution = self._draw(rng)
            problems.setdefault((numbers, target), solution)
        if len(problems) < wanted:
            raise ValueError(
                f"too few countdown problems have these sizes: {wanted} wanted, {len(problems)} found; "
                "raise max_number or num_numbers, or lower num_train or num_eval"
            )
        drawn = list(problems.items())
        chosen = drawn[: self.num_eval] if split == "eval" else drawn[self.num_eval :]
        return [_sample(numbers, target, solution) for (numbers, target), solution in chosen]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        found = ANSWER.findall(completion.removesuffix(eos_token))
        value = evaluate(found[0], sample.metadata["numbers"]) if len(found) == 1 else None
        form = 0.0 if len(found) != 1 else 0.5 if value is None else 1.0
        correct = float(value == sample.answer)
        return PARTS.reward({"format": form, "correct": correct}, {"expression": sample.metadata["solution"]})

    def gold_completion(self, sample: Sample) -> str:
        return f"<answer>{sample.metadata['solution']}</answer>"

    def _draw(self, rng: random.Random) -> tuple[tuple[int, ...], int, str]:
        """Numbers, and a target that a random expression of all of them reaches."""
        while True:
            numbers = [rng.randint(1, self.max_number) for _ in range(self.num_numbers)]
            value, solution = _combine([(Fraction(number), str(number)) for number in numbers], rng)
            if value.denominator == 1 and 0 < value <= self.max_target:
                return tuple(sorted(numbers)), int(value), solution.removeprefix("(").removesuffix(")")


def _combine(parts: list[tuple[Fraction, str]], rng: random.Random) -> tuple[Fraction, str]:
    """Join two parts at random until one is left; a division that is not whole becomes a sum."""
    while len(parts) > 1:
        rng.shuffle(parts)
        (a, left), (b, right) = parts.pop(), parts.pop()
        sign = rng.choice("+-*/")
        if sign == "/" and (b == 0 or (a / b).denominator != 1):
            sign = "+"
        parts.append((SIGNS[sign](a, b), f"({left}{sign}{right})"))
    return parts[0]


def _sample(numbers: tuple[int, ...], target: int, solution: str) -> Sample:
    listed = ", ".join(map(str, numbers))
    prompt = (
        f"Make {target} from the numbers {listed} with + - * / and brackets, using each at most once. "
        "Write only the expression, in <answer> tags, like <answer>(1+2)*3</answer>."
    )
    return Sample(prompt, target, {"numbers": list(numbers), "solution": solution})


def evaluate(expression: str, numbers: Sequence[int]) -> Fraction | None:
    """The value of arithmetic over these numbers; None when it is anything else. Nothing is executed."""
    if not WHOLE_NUMBERS.fullmatch(expression):
        return None
    try:
        value, used = worked_out(expression, has_signs=False)
    except ValueError:
        return None
    return value if used <= Counter(map(Fraction, numbers)) else None
