"""A run's stored rollouts, judged by another environment: `python -m environments score RUN --environment OTHER`.

A plain Ray Data pipeline of stored rows; no model is needed. The answer and metadata of a rollout are those of its
problem, which is found by its id among the samples of the run's own environments.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext

from app import config as configuration
from app.config import Config
from app.preflight import samples_of
from app.run_context import connect
from app.run_dir import RunDir, RunError
from app.text_table import line
from environments.base import Sample, encode_prompt
from environments.batch import TURNS
from environments.checks import clean
from environments.loader import absolute
from environments.loader import load as load_environment
from environments.worker import EnvironmentWorker
from metrics.read import samples as stored_samples

KEYS = ("step", "env", "group_id", "sample_id", "problem_id")
ORDER = ("step", "group_id", "sample_id")
BATCH_ROWS = 64
Problems = Mapping[tuple[str, str], Sample]


class Judge:
    """Ray Data stage: one environment in a process of its own, which is replaced when a reward takes too long."""

    def __init__(self, name: str, kwargs: Mapping[str, Any], limit_s: float) -> None:
        self.worker = EnvironmentWorker(name, kwargs, limit_s=limit_s)

    def __call__(self, batch: pa.Table) -> pa.Table:
        return self.worker.score(batch)


def rescore(
    run_dir: str,
    environment: str,
    kwargs: Mapping[str, Any],
    *,
    step: int | None = None,
    env: str | None = None,
    limit_s: float = 10.0,
    processes: int | None = None,
    out: str | None = None,
) -> int:
    """Judges the rollouts of a run anew and prints what is different; returns the exit status.

    Raises ValueError where the run, the environment or a setting cannot be used. `out` gets a row a rollout (Parquet).
    """
    run = RunDir(Path(run_dir))
    if not (run.path / "run.json").is_file():
        raise RunError(f"{run_dir}: there is no run here; give the path of a run directory")
    load_environment(environment, kwargs)
    rows, num_unknown = rollouts(run.path, problems(configuration.load(run.config_path)), step, env)
    if not len(rows):
        raise RunError(f"{run_dir}: no stored rollout to judge with these conditions")
    judged = pa.concat_tables(
        ray.get(pipeline(rows, absolute(environment), kwargs, limit_s, processes).to_arrow_refs())
    )
    found = pl.DataFrame(judged.select([*KEYS, "old_reward", "reward", "error"]))
    print(f"{run.id}: {len(found)} rollouts judged with {environment}")
    print("\n".join(report(found, num_unknown)))
    if out is not None:
        pq.write_table(judged.drop_columns(["prompt", "answer", "metadata"]), out)
        print(f"rows: {out}")
    return 0 if found["reward"].null_count() < len(found) else 1


def problems(config: Config) -> Problems:
    """Every sample of the run's environments, by the label of the environment and the sample's id."""
    return {
        (entry.label, sample.problem_id): sample
        for entry in config.environments
        for sample in samples_of(entry, "train")
    }


def rollouts(path: Path, known: Problems, step: int | None, env: str | None) -> tuple[pa.Table, int]:
    """The stored rollouts as a batch to score, and how many are left out because nobody knows their problem."""
    columns = [*KEYS, "reward", "completion", "turns"]
    stored = stored_samples(path, step=step, env=env, columns=columns, limit=None)[0].drop_nulls("completion")
    rows = stored.to_dicts()
    kept = [row for row in rows if (row["env"], row["problem_id"]) in known]
    asked = [known[row["env"], row["problem_id"]] for row in kept]
    table = pa.table({name: [row[name] for row in kept] for name in KEYS})
    own: dict[str, tuple[list[Any], pa.DataType]] = {
        "old_reward": ([row["reward"] for row in kept], pa.float64()),
        "prompt": ([clean(encode_prompt(sample.prompt)) for sample in asked], pa.string()),
        "completion": ([row["completion"] for row in kept], pa.string()),
        "answer": ([json.dumps(sample.answer) for sample in asked], pa.string()),
        "metadata": ([json.dumps(dict(sample.metadata)) for sample in asked], pa.string()),
        "turns": ([_told(row["turns"]) for row in kept], TURNS),
    }
    for name, (values, kind) in own.items():
        table = table.append_column(name, pa.array(values, kind))
    return table, len(rows) - len(kept)


def _told(turns: list[dict[str, Any]] | None) -> list[dict[str, str]] | None:
    return None if turns is None else [{"role": turn["role"], "text": turn["text"]} for turn in turns]


def pipeline(
    rows: pa.Table, environment: str, kwargs: Mapping[str, Any], limit_s: float, processes: int | None
) -> ray.data.Dataset:
    """The rows with their new rewards, judged by processes side by side."""
    connect(serves=False)
    DataContext.get_current().enable_progress_bars = False
    num_parts = -(-len(rows) // BATCH_ROWS)
    size = min(processes or int(ray.cluster_resources().get("CPU", 1)), num_parts)
    return ray.data.from_arrow([rows.slice(i * BATCH_ROWS, BATCH_ROWS) for i in range(num_parts)]).map_batches(
        Judge,
        fn_constructor_args=(environment, dict(kwargs), limit_s),
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=0.5,  # the work is in the processes of the environments; half is left for everything else
        compute=ActorPoolStrategy(size=max(1, size)),
    )


def report(found: pl.DataFrame, num_unknown: int) -> Iterator[str]:
    """Old and new rewards by environment of the run, how many differ, and what went wrong."""
    yield line("environment", ["rollouts", "old mean", "new mean", "changed", "largest", "errors"])
    for (env,), part in found.group_by("env", maintain_order=True):
        change = (part["reward"] - part["old_reward"]).abs()
        old, new, largest = (
            _shown(value) for value in (part["old_reward"].mean(), part["reward"].mean(), change.max())
        )
        counts = [str(count) for count in (len(part), (change > 0).sum(), part["error"].count())]
        yield line(str(env), [counts[0], old, new, counts[1], largest, counts[2]])
    for reason, count in Counter(found["error"].drop_nulls()).most_common(3):
        yield f"  {count} times: {reason}"
    if num_unknown:
        yield f"  {num_unknown} rollouts were left out: their problems are not samples of the run's environments"


def _shown(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"
