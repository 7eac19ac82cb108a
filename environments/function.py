"""A bare function `reward(batch)` as an environment."""

import importlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from environments.base import MapFn, RewardResult, Sample, Split
from environments.checks import raised, shown
from environments.score import Row, Score, failed, judged


class FunctionEnvironment:
    """`reward(batch)` judges every row of a batch by itself and returns one number a row.

    The batch is a dict of NumPy arrays, or a pyarrow Table where the parameter says so. It may return a list
    or array of numbers, or a dict or Table with a column "reward" and, if it likes, "sample_metrics". Where a
    call fails as a whole, its rows are judged again one at a time, so that one bad row costs only itself.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        name: str,
        samples: Callable[[Split], Sequence[Sample]] | None = None,
        metrics_ranges: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.metrics_ranges = metrics_ranges or {}
        self._samples = samples
        self._wants_table = _wants_table(function)
        self._library = importlib.import_module("pyarrow" if self._wants_table else "numpy")
        self._batch([])  # a first table makes pyarrow import pandas; a call must not spend its time limit on that

    def samples(self, split: Split) -> Sequence[Sample]:
        if self._samples is None:
            raise ValueError(
                f"environment {self.name!r} is a bare function without samples to train on; "
                "define samples(split) beside it"
            )
        return self._samples(split)

    def worked_examples(self, seed: int) -> Any:
        raise NotImplementedError(
            f"environment {self.name!r} is a bare function: it has no worked_examples(seed), on which the embedded "
            "policy is warmed up; make it a class that has them, or choose another model"
        )

    def map_fn(self, eos_token: str = "") -> MapFn:
        from environments.batch import score_table  # batch imports this module

        def score(table: Any) -> Any:
            return score_table(self, table, eos_token)

        return score

    def score_each(self, rows: Sequence[Row]) -> list[Score]:
        """Judge all rows with one call; after a failure, one at a time."""
        if not rows:
            return []
        try:
            return self.score_batch(rows)
        except Exception as error:  # noqa: BLE001 - environment code may raise anything
            if len(rows) == 1:
                return [failed(self.name, f"reward() failed: {raised(error)}")]
            return [score for row in rows for score in self.score_each([row])]

    def score_batch(self, rows: Sequence[Row]) -> list[Score]:
        """Judge all rows with one call; raises when the call as a whole cannot be used."""
        start_s = time.monotonic()
        results = _results(self.function(self._batch(rows)), len(rows))
        end_s = time.monotonic()
        return [replace(self._judged(result), start_s=start_s, end_s=end_s) for result in results]

    def _judged(self, result: RewardResult) -> Score:
        try:
            score = judged(result)
        except (TypeError, ValueError) as error:
            return failed(self.name, f"reward() failed: {raised(error)}")
        return score if score.error is None else replace(score, error="unscored: reward() gave None for this row")

    def _batch(self, rows: Sequence[Row]) -> Any:
        columns = {
            name: [getattr(row, name) for row in rows] for name in ("prompt", "completion", "answer", "metadata")
        }
        if self._wants_table:
            strings = self._library.schema([(name, self._library.string()) for name in columns])
            return self._library.table(columns, schema=strings)
        return {name: self._library.array(values, dtype=object) for name, values in columns.items()}


def _wants_table(function: Callable[[Any], Any]) -> bool:
    """True when the first parameter is annotated as a Table, by class or by name, and not also as a dict."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None:
        raise TypeError("reward(batch) must take the batch")
    annotation = first.annotation if isinstance(first.annotation, str) else inspect.formatannotation(first.annotation)
    return "Table" in annotation and "dict" not in annotation


def _results(returned: Any, num_rows: int) -> list[RewardResult]:
    columns = _columns(returned)
    rewards = _listed(columns["reward"], "reward", num_rows)
    if columns.get("sample_metrics") is None:
        return [RewardResult(reward) for reward in rewards]
    metrics = _listed(columns["sample_metrics"], "sample_metrics", num_rows)
    # A map column of a Table comes back as a list of pairs.
    return [
        RewardResult(reward, dict(own) if own is not None else {}) for reward, own in zip(rewards, metrics, strict=True)
    ]


def _columns(returned: Any) -> Mapping[str, Any]:
    columns = returned.to_pydict() if hasattr(returned, "to_pydict") else returned
    if not isinstance(columns, Mapping):
        return {"reward": returned}
    if "reward" not in columns:
        raise ValueError(f"reward() must return a column 'reward', got {shown(sorted(map(str, columns)))}")
    return columns


def _listed(values: Any, column: str, num_rows: int) -> list[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise TypeError(f"reward() must return one {column} a row as a list or array, got {shown(values)}")
    if len(values) != num_rows:
        raise ValueError(f"reward() must return one {column} a row: {num_rows} wanted, got {len(values)}")
    return list(values)
