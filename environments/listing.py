"""What an environment has to ask, read in a process of its own: its code may hang, exit or print.

The process gets a request as JSON on its standard input and answers with JSON on its standard output.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from environments.base import Sample, Split, encode_prompt
from environments.checks import BadEnvironment, raised, shown
from environments.loader import load
from environments.process import inherited
from environments.score import Row, sample_of

SPLITS: tuple[Split, ...] = ("train", "eval")


@dataclass(frozen=True)
class Listing:
    """Per split: the id of every sample, the first samples with their golden turns (or None), the longest prompts.

    max_turns: 1 for an environment that does not answer back.
    """

    ids: Mapping[str, Sequence[str]]
    golden: Mapping[str, Sequence[tuple[Sample, Sequence[str] | None]]]
    longest: Mapping[str, Sequence[str]]
    metrics_ranges: Mapping[str, Mapping[str, Any]]
    max_turns: int


def listing(name: str, kwargs: Mapping[str, Any], *, num_samples: int, limit_s: float, hash_seed: int = 0) -> Listing:
    """Lists an environment in a fresh process; BadEnvironment when it fails or takes longer than `limit_s`.

    `hash_seed` is Python's: with another one sets have another order, and a list made from one shows it.
    """
    request = json.dumps({"name": name, "kwargs": dict(kwargs), "num_samples": num_samples})
    command = [sys.executable, "-P", "-m", "environments.listing"]
    try:
        done = subprocess.run(
            command,
            input=request.encode(),
            stdout=subprocess.PIPE,
            timeout=limit_s,
            env=inherited(PYTHONHASHSEED=str(hash_seed)),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadEnvironment(f"environment {name!r}: listing its samples took longer than {limit_s:g} s") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise BadEnvironment(
            f"environment {name!r}: its process ended with exit code {done.returncode} while listing its samples"
        ) from None
    if "failed" in answer:
        raise BadEnvironment(answer["failed"])
    golden: dict[str, Any] = {
        split: [(sample_of(Row(*row)), gold) for *row, gold in answer["golden"][split]] for split in SPLITS
    }
    return Listing(answer["ids"], golden, answer["longest"], answer["metrics_ranges"], answer["max_turns"])


def main() -> None:
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what an environment prints goes to the log
    request = json.load(sys.stdin)
    try:
        answer = _listed(request["name"], request["kwargs"], request["num_samples"])
    except BadEnvironment as error:
        answer = {"failed": str(error)}
    except Exception as error:  # noqa: BLE001 - the border where environment code may raise anything
        answer = {"failed": f"environment {request['name']!r}: {raised(error)}"}
    with os.fdopen(answer_fd, "w") as out:
        json.dump(answer, out)


def _listed(name: str, kwargs: Mapping[str, Any], num_samples: int) -> dict[str, Any]:
    environment = load(name, kwargs)
    splits = {split: _checked(environment, split) for split in SPLITS}
    return {
        "ids": {split: [sample.problem_id for sample in samples] for split, samples in splits.items()},
        "golden": {
            split: [_with_gold(environment, sample) for sample in samples[:num_samples]]
            for split, samples in splits.items()
        },
        "longest": {
            split: sorted((encode_prompt(sample.prompt) for sample in samples), key=len)[-num_samples:]
            for split, samples in splits.items()
        },
        "metrics_ranges": {metric: dict(bounds) for metric, bounds in environment.metrics_ranges.items()},
        "max_turns": getattr(environment, "max_turns", 1),
    }


def _checked(environment: Any, split: Split) -> Sequence[Sample]:
    samples = environment.samples(split)
    wanted = f"environment {environment.name!r}: samples({split!r}) must return a list of Sample"
    if not isinstance(samples, Sequence):
        raise BadEnvironment(f"{wanted}, got {shown(samples)}")
    for place, sample in enumerate(samples):
        if not isinstance(sample, Sample):
            raise BadEnvironment(f"{wanted}, got at place {place} {shown(sample)}")
    return samples


def _with_gold(environment: Any, sample: Sample) -> list[Any]:
    gold = environment.gold_completion(sample) if hasattr(environment, "gold_completion") else None
    turns = [gold] if isinstance(gold, str) else gold
    if turns is not None and not (isinstance(turns, list | tuple) and all(isinstance(turn, str) for turn in turns)):
        wanted = "gold_completion must return a text, a list of turns or None"
        raise BadEnvironment(f"environment {environment.name!r}: {wanted}, got {shown(gold)}")
    try:
        columns = [json.dumps(sample.answer), json.dumps(dict(sample.metadata))]
    except (TypeError, ValueError) as error:
        which = f"environment {environment.name!r}, {shown(sample.prompt)}"
        raise BadEnvironment(f"{which}: answer and metadata must be JSON values: {error}") from None
    return [encode_prompt(sample.prompt), None, *columns, turns]


def all_ids(listed: Listing) -> list[str]:
    return list(chain.from_iterable(listed.ids[split] for split in SPLITS))


if __name__ == "__main__":
    main()
