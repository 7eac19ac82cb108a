"""An environment as a map over tables: rows with completions in, the same rows with their rewards out."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Sequence
from typing import Any

import pyarrow as pa

from environments.base import BaseEnvironment, Sample, encode_prompt
from environments.checks import clean, shown
from environments.function import FunctionEnvironment
from environments.score import MAX_CONCURRENT, Row, Score, is_async, score_row, score_row_async

REWARD_COLUMNS = pa.schema(
    [
        pa.field("reward", pa.float64()),
        pa.field("sample_metrics", pa.map_(pa.string(), pa.float64())),
        pa.field("golden_answers", pa.map_(pa.string(), pa.string())),
        pa.field("tags", pa.map_(pa.string(), pa.string())),
        pa.field("error", pa.string()),
        pa.field("reward_start_s", pa.float64()),
        pa.field("reward_end_s", pa.float64()),
    ]
)


TURNS = pa.list_(pa.struct([("role", pa.string()), ("text", pa.string())]))


def table_of(samples: Sequence[Sample], completions: Sequence[str | Sequence[str]]) -> pa.Table:
    """The batch that scores one completion of each sample; of a conversation, the policy's turns."""
    if len(samples) != len(completions):
        raise ValueError(f"one completion a sample is wanted, got {len(samples)} and {len(completions)}")
    said = [[one] if isinstance(one, str) else list(one) for one in completions]
    columns = {
        "prompt": [clean(encode_prompt(sample.prompt)) for sample in samples],
        "completion": [clean(turns[-1]) if turns else "" for turns in said],
        "answer": [json.dumps(sample.answer) for sample in samples],
        "metadata": [json.dumps(dict(sample.metadata)) for sample in samples],
    }
    table = pa.table(columns, schema=pa.schema([(name, pa.string()) for name in columns]))
    if all(isinstance(one, str) for one in completions):
        return table
    turns = [[{"role": "assistant", "text": clean(text)} for text in turns] for turns in said]
    return table.append_column("turns", pa.array(turns, TURNS))


def rows_of(table: pa.Table) -> list[Row]:
    """The rows to judge. Columns other than prompt and completion may be missing, and any value may be null.

    Of a conversation, `state` is what is judged; without it, the policy's turns among `turns` are played again.
    """
    missing = {"prompt", "completion"} - set(table.column_names)
    if missing:
        raise ValueError(f"a batch to score needs the columns {sorted(missing)}, got {table.column_names}")
    columns = [_column(table, name) for name in ("prompt", "completion", "answer", "metadata", "state")]
    return [Row(*values) for values in zip(*columns, _completions(table), strict=True)]


def _completions(table: pa.Table) -> list[list[str] | None]:
    if "turns" not in table.column_names:
        return [None] * table.num_rows
    conversations = table.column("turns").to_pylist()
    return [
        None if turns is None else [turn["text"] for turn in turns if turn["role"] == "assistant"]
        for turns in conversations
    ]


def _column(table: pa.Table, name: str) -> list[str | None]:
    if name not in table.column_names:
        return [None] * table.num_rows
    kind = table.schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise TypeError(f"column {name!r} must hold strings, got {kind}")
    return table.column(name).to_pylist()


def with_scores(table: pa.Table, scores: Sequence[Score]) -> pa.Table:
    """The table plus the reward columns; columns of an earlier scoring are replaced."""
    kept = table.drop_columns([name for name in REWARD_COLUMNS.names if name in table.column_names])
    values = {
        "reward": [score.reward for score in scores],
        "sample_metrics": [list(score.sample_metrics.items()) for score in scores],
        "golden_answers": [list(score.golden_answers.items()) for score in scores],
        "tags": [list(score.tags.items()) for score in scores],
        "error": [score.error for score in scores],
        "reward_start_s": [score.start_s for score in scores],
        "reward_end_s": [score.end_s for score in scores],
    }
    for column in REWARD_COLUMNS:
        kept = kept.append_column(column, pa.array(values[column.name], type=column.type))
    return kept


def score_table(environment: Any, table: Any, eos_token: str = "") -> pa.Table:
    """Judge a whole table in this process. For time limits and crashes use EnvironmentWorker."""
    if not isinstance(table, pa.Table):
        raise TypeError(f'an environment maps pyarrow tables: pass batch_format="pyarrow"; got {shown(table)}')
    rows = rows_of(table)
    return with_scores(table, score_rows(environment, rows, eos_token))


def score_rows(environment: Any, rows: Sequence[Row], eos_token: str = "") -> list[Score]:
    if isinstance(environment, FunctionEnvironment):
        return environment.score_each(rows)
    if is_async(environment):
        return _in_own_loop(score_together(environment, rows, eos_token))
    return [score_row(environment, row, eos_token) for row in rows]


async def score_together(environment: BaseEnvironment, rows: Sequence[Row], eos_token: str) -> list[Score]:
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(row: Row) -> Score:
        async with slots:
            return await score_row_async(environment, row, eos_token, limit_s=None)

    return await asyncio.gather(*map(one, rows))


def _in_own_loop(work: Awaitable[list[Score]]) -> list[Score]:
    """Run in a thread of its own: the caller's thread may have a running event loop already."""
    found: list[Score] = []

    async def collect() -> None:
        found.extend(await work)

    thread = threading.Thread(target=asyncio.run, args=(collect(),))
    thread.start()
    thread.join()
    return found
