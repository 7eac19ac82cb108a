"""app.columns: samples as they travel, as dicts, and with new columns."""

import numpy as np
import pyarrow as pa

from app.columns import SAMPLE, SCORED, dicts, replaced
from environments.batch import REWARD_COLUMNS

FIRST = {
    "env": "sums",
    "sample_id": 1,
    "prompt_ids": [1, 2],
    "token_ids": [3, 4, 5],
    "sampled": None,
    "rollout_logprobs": [-1.0, -2.0, -3.0],
    "versions": [0, 0, 1],
    "finish": "stop",
    "error": None,
}
SECOND = FIRST | {"sample_id": 2, "token_ids": [6], "sampled": [False], "error": "it broke"}
NOTHING = FIRST | {"sample_id": 3, "token_ids": [], "rollout_logprobs": [], "versions": []}


def samples() -> pa.StructArray:
    """As they come out of a ticket: a part of a longer column."""
    return pa.array([[], [FIRST, SECOND, NOTHING]], pa.list_(SAMPLE))[1].values


def test_what_there_is_for_each_token_is_an_array_and_all_else_as_it_was():
    first, second, nothing = dicts(samples())
    assert (first["sample_id"], first["env"], first["error"], first["turns"]) == (1, "sums", None, None)
    assert first["token_ids"].tolist() == [3, 4, 5]
    assert first["sampled"] is None
    assert (second["token_ids"].tolist(), second["sampled"].tolist()) == ([6], [False])
    assert second["rollout_logprobs"].dtype == np.float32
    assert (len(nothing["token_ids"]), len(nothing["versions"])) == (0, 0)
    assert set(first) == {field.name for field in SAMPLE}


def test_only_the_columns_that_are_asked_for_are_read():
    assert dicts(samples(), ("env", "versions"))[1].keys() == {"env", "versions"}


def test_what_was_given_replaces_a_column_and_the_others_stay():
    rows = [{"reward": 1.0, "error": None}, {"reward": None, "error": "too late"}, {}]
    found = replaced(samples(), SCORED, rows, REWARD_COLUMNS.names)
    assert found.type == SCORED
    assert found.field("reward").to_pylist() == [1.0, None, None]
    assert found.field("error").to_pylist() == [None, "too late", None]
    assert found.field("token_ids").to_pylist() == [[3, 4, 5], [6], []]
    assert found.field("tags").to_pylist() == [None, None, None]
