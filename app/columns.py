"""The columns of what travels through the stream: groups become samples, and samples scored ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from metrics.schema import TURN

GROUP = pa.struct(
    [
        ("group_id", pa.int64()),
        ("env", pa.string()),
        ("problem_id", pa.string()),
        ("prompt", pa.string()),  # environments.base.encode_prompt
        ("answer", pa.string()),  # JSON
        ("metadata", pa.string()),  # JSON
    ]
)
SAMPLE = pa.struct(
    [
        *GROUP,
        ("sample_id", pa.int64()),
        ("prompt_text", pa.string()),  # what the policy read
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # after the prompt: the policy's, and in a conversation the environment's
        ("sampled", pa.list_(pa.bool_())),  # per token: by the policy; null where all are
        ("rollout_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("finish", pa.string()),  # stop | length | max_turns | abort | error
        ("error", pa.string()),
        ("engine", pa.string()),
        ("generate_start_s", pa.float64()),
        ("generate_end_s", pa.float64()),
        ("num_turns", pa.int64()),
        ("truncated_turns", pa.int64()),
        ("prefix_breaks", pa.int64()),  # only of a conversation, like the following two
        ("turns", pa.list_(TURN)),
        ("state", pa.string()),  # JSON of environments.multi_turn.State
    ]
)
SCORED = pa.struct(
    [
        *SAMPLE,
        ("reward", pa.float64()),
        ("sample_metrics", pa.map_(pa.string(), pa.float64())),
        ("golden_answers", pa.map_(pa.string(), pa.string())),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("reward_start_s", pa.float64()),
        ("reward_end_s", pa.float64()),
    ]
)
PER_TOKEN = ("prompt_ids", "token_ids", "sampled", "rollout_logprobs", "versions")


def dicts(samples: pa.StructArray, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Samples as dicts of these columns (of all). What they have for each token is an array: a list of as many numbers
    takes many times as long."""
    fields = {name: samples.field(name) for name in columns or [field.name for field in samples.type]}
    found = pa.table({name: values for name, values in fields.items() if name not in PER_TOKEN}).to_pylist()
    for name in PER_TOKEN:
        if name in fields:
            for row, values in zip(found, _arrays(fields[name]), strict=True):
                row[name] = values
    return found


def _arrays(lists: pa.ListArray) -> list[np.ndarray | None]:
    """Copies: what waits for its batch must not hold the block that it came in."""
    values = lists.values.to_numpy(zero_copy_only=False)
    bounds, there = lists.offsets.to_numpy(), lists.is_valid().to_pylist()
    places = zip(bounds[:-1], bounds[1:], there, strict=True)
    return [values[start:end].copy() if ok else None for start, end, ok in places]


def replaced(samples: pa.StructArray, kind: pa.StructType, rows: list[dict[str, Any]], columns: list[str]) -> pa.Array:
    """The samples as `kind`, with these columns made of the rows; a row without one has null there."""
    arrays = [
        pa.array([row.get(field.name) for row in rows], field.type)
        if field.name in columns
        else samples.field(field.name)
        for field in kind
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))
