r"""Problems with one answer in `\boxed{…}`: what `math` and `gsm8k` share."""

import random
from collections.abc import Iterator, Sequence
from typing import ClassVar

from environments.base import RewardResult, Sample, SingleTurnEnvironment, Split
from environments.support import math_answers
from environments.support.data import Asked, Row, Sizes, Source, Splits, field

PROBLEM = ("problem", "question", "prompt")


class BoxedAnswers(SingleTurnEnvironment):
    r"""Total reward: 1 for the right answer in the last `\boxed{…}`, else 0.

    `boxed`: there is a boxed answer. `correct`: it is right. `undecided`: comparing it took longer than
    `check_limit_s` or more memory than allowed, so it counts as wrong. Problems come from `path` (JSONL or Parquet,
    with `eval_path` or held out from it), from the hub's `dataset_name`, or, without either, are made here.
    """

    metrics_ranges: ClassVar = {
        "boxed": {"min": 0, "max": 1},
        "correct": {"min": 0, "max": 1},
        "undecided": {"min": 0, "max": 1, "invert": True},
    }
    instruction: ClassVar[str] = "\nGive the final answer as \\boxed{answer}."

    def __init__(
        self,
        path: str | None = None,
        eval_path: str | None = None,
        dataset_name: str | None = None,
        dataset_config: str | None = None,
        num_train: int = 2_000,
        num_eval: int = 200,
        seed: int = 0,
        check_limit_s: float = 3.0,
    ) -> None:
        math_answers.check_installed()
        self.source = Source(path, eval_path, dataset_name, dataset_config)
        self.sizes, self.check_limit_s = Sizes(num_train, num_eval, seed), check_limit_s

    def made(self, rng: random.Random) -> tuple[str, str]:
        """A problem made here, and its answer."""
        raise NotImplementedError

    def answer_of(self, row: Row) -> str:
        """The final answer of a row of data."""
        raise NotImplementedError

    def samples(self, split: Split) -> Sequence[Sample]:
        return (self._given() if self.source.is_given else self._made())[split]

    def compute_reward(self, completion: str, sample: Sample, eos_token: str = "") -> RewardResult:
        given = math_answers.last_boxed(completion)
        correct = undecided = False
        if given is not None:
            try:
                correct = math_answers.same(sample.answer, given, self.check_limit_s)
            except (
                TimeoutError,
                ChildProcessError,
            ):  # such an answer is no answer; an error would spare it the zero it deserves
                undecided = True
        metrics = {"boxed": float(given is not None), "correct": float(correct), "undecided": float(undecided)}
        return RewardResult(float(correct), metrics, {"answer": sample.answer})

    def gold_completion(self, sample: Sample) -> str:
        return f"\\boxed{{{sample.answer}}}"

    def worked_examples(self, seed: int) -> Iterator[tuple[str, str]]:
        rng = random.Random(f"{type(self).__name__} worked {seed}")
        problems = self.samples("train")
        while True:
            sample = rng.choice(problems)
            yield str(sample.prompt), self.gold_completion(sample)

    def _given(self) -> Splits:
        train, held = ([self._of_row(row) for row in rows] for rows in self.source.rows())
        return self.sizes.of_given(train, held)

    def _of_row(self, row: Row) -> Asked:
        problem = field(row, PROBLEM, "a problem")
        return problem, Sample(problem + self.instruction, self.answer_of(row))

    def _made(self) -> Splits:
        rng = random.Random(f"{type(self).__name__} {self.sizes.seed}")
        problems: dict[str, str] = {}
        wanted = self.sizes.total
        for _ in range(20 * wanted):
            if len(problems) == wanted:
                break
            problem, answer = self.made(rng)
            problems.setdefault(problem, answer)
        if len(problems) < wanted:
            raise ValueError(f"only {len(problems)} problems can be made; lower num_train or num_eval, or give a path")
        return self.sizes.of_made([Sample(problem + self.instruction, answer) for problem, answer in problems.items()])
