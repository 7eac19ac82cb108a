"""Rows of data: from a local file, or from the hub for those who ask for a data set by its name."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.base import Sample, Split
from environments.support.optional import require

Row = Mapping[str, Any]
Asked = tuple[str, Sample]
"""A problem as its source words it, and the sample that asks it."""
Splits = Mapping[Split, Sequence[Sample]]


@dataclass(frozen=True)
class Source:
    """Where rows come from: `path` of a JSONL or Parquet file, or `dataset_name` of the hub or of a folder laid out so.

    Neither: there are none.
    """

    path: str | None = None
    eval_path: str | None = None
    dataset_name: str | None = None
    dataset_config: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None and self.dataset_name is not None:
            raise ValueError("give path or dataset_name, not both")
        if self.eval_path is not None and self.path is None:
            raise ValueError("eval_path needs path")

    @property
    def is_given(self) -> bool:
        return self.path is not None or self.dataset_name is not None

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Rows to train on, and held-out ones where the source has them apart (the hub's split "test")."""
        if self.dataset_name is not None:
            return _of_hub(self.dataset_name, self.dataset_config)
        held_out = of_file(self.eval_path) if self.eval_path is not None else []
        return (of_file(self.path) if self.path is not None else []), held_out


def of_file(path: str) -> list[Row]:
    """Rows of a Parquet file, or of a file with one JSON object a line."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path!r}")
    if file.suffix == ".parquet":
        return require("pyarrow.parquet").read_table(file).to_pylist()
    with file.open(encoding="utf-8") as lines:
        return list(_json_lines(path, lines))


def _json_lines(path: str, lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: wanted one JSON object a line: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: wanted a JSON object, got {line[:80].strip()}")
        yield row


def _of_hub(name: str, config: str | None) -> tuple[list[Row], list[Row]]:
    splits = require("datasets").load_dataset(name, config)
    if "train" not in splits:
        raise ValueError(f"dataset {name!r} has no split 'train', only {', '.join(splits)}")
    return list(splits["train"]), list(splits["test"]) if "test" in splits else []


def field(row: Row, names: Sequence[str], what: str) -> str:
    """The text under the first of these column names that the row has."""
    for name in names:
        if isinstance(value := row.get(name), str | int | float):
            return str(value)
    raise ValueError(f"a row needs {what} in a column {' or '.join(names)}, got the columns {sorted(map(str, row))}")


@dataclass(frozen=True)
class Sizes:
    """How many problems are trained on and how many are held out; `seed` draws those that are held out."""

    num_train: int
    num_eval: int
    seed: int

    def __post_init__(self) -> None:
        if min(self.num_train, self.num_eval) < 1:
            raise ValueError(f"num_train and num_eval must be at least 1, got {self.num_train} and {self.num_eval}")

    @property
    def total(self) -> int:
        return self.num_train + self.num_eval

    def of_made(self, samples: Sequence[Sample]) -> Splits:
        """The first are held out, so that they stay the same when `num_train` changes."""
        return {"eval": samples[: self.num_eval], "train": samples[self.num_eval : self.total]}

    def of_given(self, train: Sequence[Asked], held: Sequence[Asked]) -> Splits:
        """Each problem once, and none of those that are held out among those to train on.

        Where the source has none apart, `num_eval` are drawn to be held out. Raises ValueError when that leaves none.
        """
        asked, apart = _once(train), _once(held)
        drawn = apart.keys() or self._drawn(list(asked))
        held_out = list(apart.values()) or [sample for problem, sample in asked.items() if problem in drawn]
        rest = [sample for problem, sample in asked.items() if problem not in drawn]
        return {"eval": held_out[: self.num_eval], "train": rest[: self.num_train]}

    def _drawn(self, problems: Sequence[str]) -> Set[str]:
        if len(problems) <= self.num_eval:
            raise ValueError(
                f"there are {len(problems)} different problems; num_eval must be below that, got {self.num_eval}"
            )
        return set(random.Random(f"held out {self.seed}").sample(sorted(problems), self.num_eval))


def _once(asked: Sequence[Asked]) -> dict[str, Sample]:
    """The first of several with the same problem."""
    once: dict[str, Sample] = {}
    for problem, sample in asked:
        once.setdefault(problem, sample)
    return once
