"""The two kinds of rows that a run hands to its metrics: samples (one row a completion) and spans (one row an
operation).

Senders build tables with `samples_table` and `spans_table`; `conform` lets any Arrow table in that has these
columns, and refuses others by name. Times are seconds on ONE monotonic clock of the run (that of the weight store's
host: app/clock.py). A null is "absent": not measured. It is never the same as 0, NaN or an empty text.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import pyarrow as pa


class Outcome(StrEnum):
    """The bin a sample ends in. Every started sample ends in exactly one; `eval` is outside of training."""

    TRAINED = "trained"  # its tokens entered the loss
    ZERO_ADVANTAGE = "zero_advantage"  # all rewards of its group are equal
    MAX_ASYNC = "max_async"  # too many weight updates behind when the batch was formed
    CANCELED = "canceled"  # stopped while generating
    ERROR = "error"  # environment, tool or engine failed, or the reward was not a finite number
    FILTERED = "filtered"  # masked by an overlong, repetition or gibberish filter
    IN_FLIGHT = "in_flight"  # not finished when the attempt ended
    EVAL = "eval"  # drawn to evaluate, never to train


BINS = tuple(outcome for outcome in Outcome if outcome is not Outcome.EVAL)
DISCARDED = (Outcome.ZERO_ADVANTAGE, Outcome.MAX_ASYNC, Outcome.FILTERED, Outcome.ERROR)
"""Generated to the end, but not trained. Canceled samples were not generated to the end and are counted apart."""


class SpanKind(StrEnum):
    """What a lane of the timeline did from start_s to end_s."""

    STEP = "step"  # from the end of the previous step (or the start of the loop) to the end of this one
    WAITING_FOR_DATA = "waiting_for_data"
    FORWARD = "forward"
    BACKWARD = "backward"
    LOSS_COMPUTATION = "loss_computation"
    COMPUTE_KL = "compute_kl"
    COMPUTE_ENTROPY = "compute_entropy"
    DATA_TO_DEVICE = "data_to_device"
    PREPARE_TENSORS = "prepare_tensors"
    OPTIMIZER = "optimizer"
    WEIGHT_SYNC_TRAINER = "weight_sync_trainer"  # gathering and publishing the weights
    WEIGHT_SYNC_INFERENCE = "weight_sync_inference"  # one server loading them
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    WAITING_FOR_METRICS = "waiting_for_metrics"  # until the metrics of a step were stored


DUMMY = "dummy"
"""`detail` of a span of a micro-batch that only keeps the ranks in step: left out of the micro-batch means."""

INT, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()


def required(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"meaning": meaning})


def optional(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, kind, nullable=True, metadata={"meaning": meaning})


TURN = pa.struct(
    [
        ("role", TEXT),  # assistant is the policy; user, tool and system the environment
        ("text", TEXT),
        ("first_token", pa.int32()),  # place in token_ids
        ("num_tokens", pa.int32()),  # of several messages between two turns of the policy, all at the first
        ("tool", TEXT),  # name of the tool whose result it is
        ("is_error", pa.bool_()),  # the result of a call that failed
        ("start_s", FLOAT),  # when the engine, or the environment, began with it
        ("end_s", FLOAT),
    ]
)

SAMPLES = pa.schema(
    [
        required(
            "step", INT, "trainer step (from 1) at which the sample was trained or discarded; 0 for a baseline eval"
        ),
        required("env", TEXT, "environment entry of the config; for an eval, the name of the eval"),
        required("group_id", INT, "id of the group, unique in the attempt: one prompt and its completions"),
        required("sample_id", INT, "id of the sample, unique in the attempt"),
        optional("problem_id", TEXT, "id of the environment's sample that the prompt was made of"),
        required("outcome", TEXT, "the bin: " + ", ".join(Outcome)),
        optional("outcome_reason", TEXT, "why, in words: the error, the filter, the cause of cancellation"),
        optional("reward", FLOAT, "total reward; absent when not scored"),
        optional("advantage", FLOAT, "the value that multiplied the loss"),
        required("prompt_tokens", INT, "tokens of the prompt"),
        required("completion_tokens", INT, "tokens sampled by the policy, over all turns"),
        required("total_tokens", INT, "all tokens of the sample: prompt, completion and environment"),
        required("num_turns", INT, "turns of the policy"),
        required("truncated_turns", INT, "turns that the engine ended for the token limit"),
        optional("off_policy_steps", INT, "current version minus the oldest version among the trained tokens"),
        optional(
            "stop_reason",
            TEXT,
            "the engine's finish reason of the last turn (stop, length, abort), or max_turns; length, too, where what "
            "the environment said left no room for an answer",
        ),
        optional("sample_metrics", pa.map_(TEXT, FLOAT), "the environment's own numbers; a null value is absent"),
        optional("golden_answers", pa.map_(TEXT, TEXT), "what a right answer looks like"),
        optional("tags", pa.map_(TEXT, TEXT), "labels to filter by"),
        optional("prompt", TEXT, "the prompt as text"),
        optional("completion", TEXT, "the completion as text"),
        optional("prompt_ids", pa.list_(pa.int32()), "token ids of the prompt"),
        optional("token_ids", pa.list_(pa.int32()), "token ids after the prompt"),
        optional("trained_mask", pa.list_(pa.bool_()), "per token of token_ids: it entered the loss"),
        optional(
            "rollout_logprobs",
            pa.list_(pa.float32()),
            "per token: the engine's log-probability; 0 for the environment's",
        ),
        optional(
            "versions", pa.list_(pa.int32()), "per token: the weights version that sampled it; -1 for the environment's"
        ),
        optional("generate_start_s", FLOAT, "the request entered the engine"),
        optional("generate_end_s", FLOAT, "the last token arrived"),
        optional(
            "turn_times_s",
            pa.list_(FLOAT),
            "of a conversation: when each of the policy's turns began and ended, one after the other",
        ),
        optional("reward_start_s", FLOAT, "scoring began"),
        optional("reward_end_s", FLOAT, "scoring ended"),
        optional("engine", TEXT, "replica that generated it"),
        optional("turns", pa.list_(TURN), "of a conversation: what was said after the prompt, in order"),
    ]
)

SPANS = pa.schema(
    [
        required("step", INT, "trainer step that the span is charged to"),
        required("lane", TEXT, "who: 'trainer 0', 'weights', 'evals', …"),
        required("kind", TEXT, "what: " + ", ".join(SpanKind)),
        required("start_s", FLOAT, "seconds on the run's clock"),
        required("end_s", FLOAT, "seconds on the run's clock, not before start_s"),
        optional("microbatch", INT, "number of the micro-batch within the step and lane"),
        optional("detail", TEXT, f"a remark; '{DUMMY}' for a micro-batch without data"),
    ]
)

BULKY = ("prompt", "completion", "prompt_ids", "token_ids", "trained_mask", "rollout_logprobs", "versions", "turns")
"""Columns that no statistic reads: a step's numbers are computed without touching them."""

NARROW = tuple(name for name in SAMPLES.names if name not in BULKY)


def samples_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Samples from dicts; left-out optional columns are absent. Text that UTF-8 cannot hold is escaped, visibly."""
    return from_rows(rows, SAMPLES)


def spans_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Spans from dicts."""
    return from_rows(rows, SPANS)


def from_rows(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    rows = list(rows)
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise ValueError(unknown_columns(unknown, schema))
    arrays = [array_of([safe(row.get(field.name)) for row in rows], field) for field in schema]
    return conform(pa.Table.from_arrays(arrays, schema=loose(schema)), schema)


def array_of(values: list[Any], field: pa.Field) -> pa.Array:
    """The values as the column's type, or a TypeError that names the column and the first row that is of another."""
    try:
        return pa.array(values, field.type)
    except NO_SUCH_VALUE:
        for row, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except NO_SUCH_VALUE as error:
                got = f"{str(value)[:60]!r} ({type(value).__name__})"
                raise TypeError(f"column {field.name!r}, row {row}: must be {field.type}, got {got}") from error
        raise


NO_SUCH_VALUE = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


def safe(value: Any) -> Any:
    """Text with lone surrogates as escapes (`\\udc80`): the text survives, marked, and every file stays readable."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return [(safe(key), safe(item)) for key, item in value.items()]
    return value


def marked(value: Any) -> Any:
    """The same value as strict JSON can hold it: non-finite floats as {"nonfinite": "nan" | "inf" | "-inf"}, integers
    beyond 64 bits as text, lone surrogates as escapes.

    A marker object cannot be taken for a text that happens to read "nan".
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {"nonfinite": str(value)}
    if isinstance(value, str):
        return safe(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, dict):
        return {safe(str(key)): marked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item) for item in value]
    return value


def loose(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the schema's columns, or an error that names the column, what came and what was wanted."""
    unknown = set(table.column_names) - set(schema.names)
    if unknown:
        raise ValueError(unknown_columns(unknown, schema))
    columns = [conform_column(table, field) for field in schema]
    result = pa.Table.from_arrays(columns, schema=schema)
    check_words(result)
    return result


def conform_column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        if not field.nullable and table.num_rows:
            raise ValueError(f"column {field.name!r} is missing; every row needs it: {meaning(field)}")
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = cast(table[field.name], field)
    if not field.nullable and column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise ValueError(f"column {field.name!r}, row {row}: a value is needed, got null: {meaning(field)}")
    return column


def cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        if pa.types.is_map(field.type) and pa.types.is_list(column.type):
            column = pa.chunked_array(
                [map_of(chunk) for chunk in column.chunks], type=None if column.chunks else field.type
            )
        column = column.cast(field.type)
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise TypeError(
                f"column {field.name!r}: cannot be read as {field.type}, got {column.type}: {error}"
            ) from error
        return escaped(column, field)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise TypeError(f"column {field.name!r} must be {field.type}, got {column.type}") from error
    return column


def map_of(entries: pa.ListArray) -> pa.MapArray:
    """A list of {key, value} structs as the map it stands for."""
    pairs = entries.values
    keys, items = pairs.field(0), pairs.field(1)
    return pa.MapArray.from_arrays(entries.offsets, keys, items, mask=entries.is_null() if entries.null_count else None)


def escaped(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Bytes that are not UTF-8 as escapes (`\\xff`)."""
    if not pa.types.is_string(field.type):
        raise TypeError(f"column {field.name!r} holds text that is not UTF-8; decode it with errors='backslashreplace'")
    raw = column.cast(pa.binary()).to_pylist()
    return pa.chunked_array(
        [pa.array([item if item is None else item.decode("utf-8", "backslashreplace") for item in raw])]
    )


def check_words(table: pa.Table) -> None:
    for name, words in (("outcome", Outcome), ("kind", SpanKind)):
        if name in table.column_names:
            strange = set(table[name].unique().to_pylist()) - {str(word) for word in words}
            if strange:
                raise ValueError(f"column {name!r}: unknown value {min(strange)!r}; use one of {', '.join(words)}")
    if "end_s" in table.column_names:
        for row, (start, end) in enumerate(zip(table["start_s"].to_pylist(), table["end_s"].to_pylist(), strict=True)):
            if not end >= start:
                raise ValueError(f"span {row}: ends at {end} s before it starts at {start} s; use one monotonic clock")


def unknown_columns(unknown: set[str], schema: pa.Schema) -> str:
    name = min(unknown)
    near = difflib.get_close_matches(name, schema.names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"known columns: {', '.join(schema.names)}"
    return f"unknown column {name!r}; {hint}"


def meaning(field: pa.Field) -> str:
    return (field.metadata or {}).get(b"meaning", b"").decode()
