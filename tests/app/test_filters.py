"""app.filters: completions that leave the loss, with the reason, and what a long one costs."""

import math

import pytest

from app.batch import Batch, BatchBuilder
from app.config import ConfigError
from app.filters import FiltersConfig, GibberishConfig, gibberish_place, overlong_penalty, reason, repetition_end
from tests.app.tiny import group, tiny_config

SURE, UNSURE = math.log(0.995), math.log(0.5)


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0.0), (800, 0.0), (900, -0.5), (1000, -1.0), (1400, -1.0)])
def test_overlong_penalty(num_tokens, expected):
    assert overlong_penalty(num_tokens, max_tokens=1000, buffer=200, factor=1.0) == expected


def test_overlong_penalty_without_a_buffer_is_a_step():
    assert [overlong_penalty(n, 1000, 0, 2.0) for n in (1000, 1001)] == [0.0, -2.0]


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ([], None),
        ([SURE] * 2, None),
        ([SURE] * 3, 3),
        ([SURE, SURE, UNSURE, SURE, SURE], None),
        ([UNSURE, SURE, SURE, SURE, UNSURE], 4),
        ([math.log(0.99)] * 3, None),
        ([math.nan, SURE, SURE], None),
    ],
)
def test_a_repetition_is_a_run_of_nearly_certain_tokens(logprobs, expected):
    assert repetition_end(logprobs, window=3, probability=0.99) == expected


@pytest.mark.parametrize(
    ("token", "logprob", "is_gibberish"),
    [
        (101, -math.log(1000) - 2.1, True),
        (101, -math.log(1000) - 1.9, False),
        (100, -math.log(1000) - 9.0, False),
        (999, math.nan, False),
    ],
)
def test_gibberish_is_a_rare_token_less_likely_than_chance(token, logprob, is_gibberish):
    config = GibberishConfig(rare_token_id=100)
    found = gibberish_place([5, token], [-20.0, logprob], 1000, config)
    assert found == (1 if is_gibberish else None)


def test_nothing_is_filtered_by_default():
    assert reason(FiltersConfig(), True, [10**6], [-99.0]) is None


def test_gibberish_needs_a_vocabulary():
    with pytest.raises(ValueError, match="size of the vocabulary, got None"):
        reason(FiltersConfig(gibberish=GibberishConfig()), False, [1], [-1.0])


# In a batch.


def batch_of(first: list, vocab_size: int | None = None, **filters) -> Batch:
    """A step whose first group is the given one."""
    builder = BatchBuilder(tiny_config(filters=filters), 1, 1, vocab_size)
    for samples in [first, *(group(g, [1, 0, 0, 0]) for g in range(1, 10))]:
        builder.add(samples)
        if builder.complete():
            return builder.take()
    raise AssertionError("never complete")


def test_a_truncated_completion_leaves_the_loss_and_its_groups_mean():
    samples = group(0, [1, 0, 0, 1])
    samples[3]["finish"] = "length"
    batch = batch_of(samples, overlong=True)
    rows = batch.rows.to_pylist()[:4]
    assert [row["outcome"] for row in rows] == ["trained"] * 3 + ["filtered"]
    assert rows[3]["outcome_reason"] == f"overlong: cut after {rows[3]['completion_tokens']} tokens"
    assert rows[3]["advantage"] is None
    assert list(rows[3]["trained_mask"]) == [False] * rows[3]["completion_tokens"]
    assert sum(row["advantage"] for row in rows[:3]) == pytest.approx(0)
    assert 3 not in batch.shares[0]["sample_ids"]


def test_each_filter_gives_its_reason_and_every_sample_has_one_bin():
    samples = group(0, [1, 0, 1, 0])
    samples[0]["finish"] = "length"
    samples[1]["rollout_logprobs"] = [SURE] * len(samples[1]["token_ids"])
    samples[2]["token_ids"] = [31] * len(samples[2]["token_ids"])
    samples[2]["rollout_logprobs"] = [-9.0] * len(samples[2]["token_ids"])
    filters = {
        "overlong": True,
        "repetition": {"window": 3, "probability": 0.99},
        "gibberish": {"rare_token_id": 30},
    }
    rows = batch_of(samples, 32, **filters).rows.to_pylist()
    reasons = {r["sample_id"]: (r["outcome"], str(r["outcome_reason"]).split(":")[0]) for r in rows}
    kinds = ("overlong", "repetition", "gibberish")
    assert [reasons[i] for i in range(3)] == [("filtered", kind) for kind in kinds]
    assert reasons[3] == ("filtered", "only 1 of 4 samples of its group can be trained")
    assert sorted(reasons) == list(range(len(rows)))


def test_tokens_of_the_environment_are_not_judged():
    samples = group(0, [1, 0, 0, 1])
    for sample in samples:
        sample["rollout_logprobs"] = [SURE] * len(sample["token_ids"])
        sample["sampled"] = [True, True] + [False] * (len(sample["token_ids"]) - 2)
    builder = BatchBuilder(tiny_config(filters={"repetition": {"window": 3}}), 1, 1)
    assert {builder._filter_reason(sample) for sample in samples} == {None}


def test_the_overlong_penalty_lowers_the_reward_before_the_advantages():
    rows = batch_of(group(0, [1, 1, 1, 1]), overlong_penalty={"max": 9, "buffer": 6}).rows.to_pylist()[:4]
    lengths = [row["completion_tokens"] for row in rows]
    assert lengths == [3, 6, 9, 3]
    assert [row["reward"] for row in rows] == [1, 0.5, 0, 1]
    assert [dict(row["sample_metrics"])["reward_before_overlong_penalty"] for row in rows] == [1] * 4
    assert rows[2]["advantage"] < rows[1]["advantage"] < 0 < rows[0]["advantage"]


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"overlong_penalty": {"max": 4, "buffer": 5}}, "got 5, wanted at most max = 4"),
        ({"overlong_penalty": {"max": 50, "buffer": 5}}, "begins at max - buffer = 45 tokens"),
        ({"repetition": {}}, "got 3000, wanted at most engine.max_model_len = 32"),
        ({"repetition": {"window": 3, "probability": 1.0}}, "wanted a number below 1"),
        ({"overlong_mask": True}, "unknown key"),
    ],
)
def test_filters_that_could_never_apply_are_refused(filters, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config(filters=filters)
