"""reasoning_gym: the procedural tasks of the package reasoning-gym, more than a hundred, with its own scoring.

`task` is one of its names; `difficulty` a level of the task's curriculum (0 is the easiest); `task_kwargs` are
fields of the task's own configuration and win over the level. An answer is read from the last <answer> tags, or,
without any, is the whole reply.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, ClassVar

from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split
from environments.support.data import Sizes

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
INSTRUCTION = "\nGive the final answer in <answer></answer> tags."


class ReasoningGym(SingleTurnEnvironment):
    """Total reward: the package's score, 0 to 1.

    `tagged`: the answer stood in tags. `correct`: the score is 1. `unreadable`: scoring the answer failed, so it got 0.
    """

    metrics_ranges: ClassVar = {
        "tagged": {"min": 0, "max": 1},
        "correct": {"min": 0, "max": 1},
        "unreadable": {"min": 0, "max": 1, "invert": True},
    }

    def __init__(
        self,
        task: str = "chain_sum",
        difficulty: int | None = None,
        task_kwargs: Mapping[str, Any] | None = None,
        num_train: int = 1_000,
        num_eval: int = 100,
        seed: int = 0,
    ) -> None:
        if task not in DATASETS:
            near = difflib.get_close_matches(task, DATASETS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"tasks: {', '.join(sorted(DATASETS))}"
            raise ValueError(f"reasoning-gym has no task {task!r}; {hint}")
        self.task, self.sizes = task, Sizes(num_train, num_eval, seed)
        given = {"seed": seed, "size": 2 * self.sizes.total, **dict(task_kwargs or {})}
        self._configured = _configured(task, difficulty, given)

    def samples(self, split: Split) -> Sequence[Sample]:
        """The first different questions are held out. Small tasks repeat themselves, so twice as many are drawn."""
        first: dict[str, int] = {}
        for index in range(len(self._entries)):
            first.setdefault(self._entries[index]["question"], index)
            if len(first) == self.sizes.total:
                break
        if len(first) <= self.sizes.num_eval:
            raise ValueError(f"task {self.task!r} has {len(first)} different questions only; lower num_eval")
        return self.sizes.of_made([self._sample(index) for index in first.values()])[split]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        text = completion.removesuffix(eos_token)
        tagged = ANSWER.findall(text)
        score, unreadable = self._score((tagged or [text])[-1].strip(), sample.metadata["index"])
        metrics = {"tagged": float(bool(tagged)), "correct": float(score >= 1), "unreadable": float(unreadable)}
        return RewardResult(score, metrics, {"answer": sample.answer}, {"task": self.task})

    def gold_completion(self, sample: Sample) -> str | None:
        return None if sample.answer is None else f"<answer>{sample.answer}</answer>"

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        rng = Random(f"reasoning_gym worked {seed}")
        known = [sample for sample in self.samples("train") if sample.answer is not None]
        while True:
            sample = rng.choice(known)
            yield str(sample.prompt), f"<answer>{sample.answer}</answer>"

    @cached_property
    def _entries(self) -> Any:
        """The task's data set: an entry is a function of the seed and its index."""
        return DATASETS[self.task][0](config=self._configured)

    def _score(self, answer: str, index: int) -> tuple[float, bool]:
        """The package's score, and whether it failed: what a model wrote must not turn its zero into an error."""
        try:
            return float(self._entries.score_answer(answer, self._entries[index])), False
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return 0.0, True

    def _sample(self, index: int) -> Sample:
        entry = self._entries[index]
        answer = entry["answer"]
        return Sample(entry["question"] + INSTRUCTION, None if answer is None else str(answer), {"index": index})


def _configured(task: str, difficulty: int | None, given: Mapping[str, Any]) -> Any:
    """The task's configuration at a level of difficulty, with the given fields."""
    kind = DATASETS[task][1]
    unknown = sorted(set(given) - {field.name for field in dataclasses.fields(kind)})
    if unknown:
        known = ", ".join(field.name for field in dataclasses.fields(kind))
        raise ValueError(f"task {task!r} has no setting {unknown[0]!r}; its settings are {known}")
    if difficulty is None:
        return kind(**given)
    if task not in CURRICULA or difficulty < 0:
        raise ValueError(f"task {task!r} has no difficulty {difficulty}: it has no levels, or none below 0")
    curriculum: Any = create_curriculum(task)
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(difficulty, len(attribute.levels) - 1))
    return dataclasses.replace(curriculum.generate_configuration(), **given)
