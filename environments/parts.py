"""A reward made of named parts. Each part is a sample metric with a declared range, and weighs something in the total.

PARTS = Parts(correct=Part(weight=1.0), length=Part(weight=0.2, max=200, invert=True))

class Short(SingleTurnEnvironment):
    metrics_ranges = PARTS.ranges

    def compute_reward(self, completion, sample, eos_token=""):
        values = {"correct": completion == sample.answer, "length": min(len(completion), 200)}
        return PARTS.reward(values, golden_answers={"answer": sample.answer})
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from environments.base import RewardResult
from environments.checks import BadEnvironment, metric_name, number, shown


@dataclass(frozen=True)
class Part:
    """Worth `weight` at its best value and nothing at its worst. The best is `max`, or `min` where inverted."""

    weight: float = 1.0
    min: float = 0.0
    max: float = 1.0
    invert: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min) and math.isfinite(self.max) and self.min < self.max):
            raise BadEnvironment(f"a part's min must be below its max, both finite, got {self.min} and {self.max}")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise BadEnvironment(
                f"a part's weight must be finite and not negative, got {self.weight}; where less is better set invert"
            )

    def share(self, value: float) -> float:
        """Where a value lies between worst, 0, and best, 1."""
        share = (value - self.min) / (self.max - self.min)
        return 1 - share if self.invert else share


class Parts:
    """The parts of one reward, by name."""

    def __init__(self, **parts: Part) -> None:
        if not parts:
            raise BadEnvironment("a reward needs at least one part")
        self.parts = {metric_name(name): part for name, part in parts.items()}

    @property
    def ranges(self) -> dict[str, dict[str, Any]]:
        """What an environment declares as `metrics_ranges`."""
        return {name: {"min": p.min, "max": p.max, "invert": p.invert} for name, p in self.parts.items()}

    @property
    def best(self) -> float:
        """The largest total; the smallest is 0."""
        return sum(part.weight for part in self.parts.values())

    def reward(
        self,
        values: Mapping[str, float | None],
        golden_answers: Mapping[str, str | None] | None = None,
        tags: Mapping[str, str | None] | None = None,
    ) -> RewardResult:
        """The sum of weight × share over all parts. A part that is None could not be judged: neither is the total.

        Raises ValueError for a part that is missing, unknown or outside its range: it would weigh something else.
        """
        if set(values) != set(self.parts):
            raise ValueError(f"the parts of this reward are {', '.join(self.parts)}, got {shown(list(values))}")
        numbers = {name: self._checked(name, value) for name, value in values.items()}
        known = {name: value for name, value in numbers.items() if value is not None}
        total = sum(self.parts[name].weight * self.parts[name].share(value) for name, value in known.items())
        return RewardResult(total if len(known) == len(numbers) else None, numbers, golden_answers or {}, tags or {})

    def _checked(self, name: str, value: Any) -> float | None:
        part, found = self.parts[name], number(value, f"part {name!r}")
        if found is not None and not part.min <= found <= part.max:
            raise ValueError(
                f"part {name!r} is declared as {part.min:g} to {part.max:g}, got {found:g}; cut it or widen"
            )
        return found
