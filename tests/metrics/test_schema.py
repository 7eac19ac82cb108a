"""Rows at the door: what comes in as it is, what is mended visibly, and what is refused by name."""

import math

import pyarrow as pa
import pytest

from metrics.schema import SAMPLES, SPANS, conform, marked, samples_table, spans_table
from tests.metrics.builders import sample


def one(**given):
    return samples_table([sample(**given)]).to_pylist()[0]


@pytest.mark.parametrize(
    "text", ["", "NaN", "null", "a\x00b", "🎯 потери", "</script><b>", "\u202eevil", "\x1b[31mred", "x" * 100_000]
)
def test_any_text_comes_back_as_it_was(text):
    row = one(prompt=text, completion=text, tags={"t": text})
    assert (row["prompt"], row["completion"], dict(row["tags"])["t"]) == (text, text, text)


def test_half_a_surrogate_pair_survives_as_an_escape():
    assert one(completion="a\udc80b")["completion"] == "a\\udc80b"


def test_bytes_that_are_not_text_survive_as_escapes():
    table = samples_table([sample(completion="good"), sample(sample_id=1)])
    raw = pa.array([b"\xff!", None]).view(pa.string())
    table = table.set_column(table.schema.get_field_index("completion"), "completion", raw)
    assert conform(table, SAMPLES)["completion"].to_pylist() == ["\\xff!", None]


def test_absent_zero_and_not_finite_are_three_things():
    rows = samples_table(
        [sample(reward=None), sample(reward=0.0), sample(reward=float("nan")), sample(reward=float("-inf"))]
    )
    assert str(rows["reward"].to_pylist()) == "[None, 0.0, nan, -inf]"


def test_an_absent_sample_metric_is_kept_as_absent():
    assert one(sample_metrics={"a": None, "b": 0.0})["sample_metrics"] == [("a", None), ("b", 0.0)]


def test_columns_that_are_left_out_are_absent():
    bare = samples_table([sample()]).select(
        [
            "step",
            "env",
            "group_id",
            "sample_id",
            "outcome",
            "prompt_tokens",
            "completion_tokens",
            "total_tokens",
            "num_turns",
            "truncated_turns",
        ]
    )
    full = conform(bare, SAMPLES)
    assert full.schema.equals(SAMPLES)
    assert full["reward"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reword": 1.0}, "unknown column 'reword'; did you mean 'reward'"),
        ({"step": None}, "column 'step', row 0: a value is needed"),
        ({"outcome": "lost"}, "unknown value 'lost'; use one of trained"),
    ],
)
def test_a_wrong_row_is_refused_by_name(given, said):
    with pytest.raises(ValueError, match=said):
        samples_table([sample(**given)])


def test_a_wrong_column_type_is_refused_by_name():
    table = samples_table([sample()])
    wrong = table.set_column(table.schema.get_field_index("reward"), "reward", pa.array([[1.0]]))
    with pytest.raises(TypeError, match="column 'reward' must be double"):
        conform(wrong, SAMPLES)
    text = table.set_column(table.schema.get_field_index("reward"), "reward", pa.array(["high"]))
    with pytest.raises(TypeError, match="column 'reward'"):
        conform(text, SAMPLES)


@pytest.mark.parametrize("given", [{"token_ids": "héllo"}, {"completion_tokens": "héllo"}, {"reward": [1.0]}])
def test_text_in_place_of_ids_or_a_list_in_place_of_a_number_is_refused_by_name(given):
    with pytest.raises(TypeError, match=f"column '{next(iter(given))}', row 1: "):
        samples_table([sample(), sample(**given)])


def test_narrower_and_wider_types_are_taken():
    table = samples_table([sample(step=2**31)])
    for name, kind in (
        ("group_id", pa.int32()),
        ("reward", pa.float32()),
        ("env", pa.large_string()),
        ("outcome", pa.dictionary(pa.int8(), pa.string())),
    ):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(kind))
    assert conform(table, SAMPLES)["step"].to_pylist() == [2_147_483_648]


def test_maps_given_as_lists_of_pairs_are_taken():
    pairs = pa.array(
        [[{"key": "a", "value": 1.0}], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.float64())]))
    )
    table = samples_table([sample(), sample(sample_id=1)])
    table = table.set_column(table.schema.get_field_index("sample_metrics"), "sample_metrics", pairs)
    assert conform(table, SAMPLES)["sample_metrics"].to_pylist() == [[("a", 1.0)], None]


def test_a_span_cannot_end_before_it_starts():
    with pytest.raises(ValueError, match=r"span 0: ends at 1.0 s before it starts at 2.0 s"):
        spans_table([{"step": 1, "lane": "trainer 0", "kind": "forward", "start_s": 2.0, "end_s": 1.0}])
    assert spans_table([]).schema.equals(SPANS)


def test_what_json_cannot_hold_is_marked_at_every_depth():
    found = marked(
        {"a\ud83d": [math.nan, (math.inf, -math.inf)], "b": {"c": 2**63, "d": 2**63 - 1}, "e": ["nan", 0.5, None]}
    )
    assert found == {
        "a\\ud83d": [{"nonfinite": "nan"}, [{"nonfinite": "inf"}, {"nonfinite": "-inf"}]],
        "b": {"c": str(2**63), "d": 2**63 - 1},
        "e": ["nan", 0.5, None],
    }
