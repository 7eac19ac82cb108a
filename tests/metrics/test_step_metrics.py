"""The numbers of a step from its rows: the values of the contract, and what may never change them."""

import math
import random
import subprocess
import sys
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metrics
from metrics.schema import samples_table, spans_table
from tests.metrics.builders import group, sample


def step(rows: list[dict[str, Any]], spans: list[dict[str, Any]] = (), **given: Any) -> dict[str, float]:
    return metrics.step_metrics(pl.DataFrame(samples_table(rows)), pl.DataFrame(spans_table(spans)), **given)


def test_rewards():
    rows = group([1.0, 0.0, 0.0, 0.0], group_id=1) + group([2.0, 2.0, 0.0, 1.0], group_id=2)
    found = step(rows)
    assert found["reward_mean"] == 0.75
    assert found["reward_std"] == pytest.approx(0.886405, abs=1e-6)
    assert (found["reward_min"], found["reward_max"], found["reward_count"]) == (0.0, 2.0, 8.0)
    assert found["reward_gini_mean"] == pytest.approx((0.75 + 0.35) / 2)
    assert found["reward/sums/reward_mean"] == 0.75
    assert "reward_nonfinite_count" not in found


def test_one_sample_has_no_standard_deviation():
    found = step([sample(reward=1.0)])
    assert found["reward_mean"] == 1.0
    assert "reward_std" not in found
    assert "reward_group_std_mean" not in found


def test_an_absent_reward_is_not_zero():
    rows = [*group([None, 1.0, 1.0, 0.0])]
    rows[0]["outcome"], rows[0]["outcome_reason"] = "error", "the sandbox timed out"
    found = step(rows)
    assert found["reward_mean"] == pytest.approx(2 / 3)
    assert found["generated/reward_count"] == 3.0
    assert found["discarded_count"] == 1.0


def test_environments_are_reported_apart_and_together():
    rows = group([0.0, 1.0], group_id=1, env="a") + group([4.0, 6.0], group_id=2, env="b")
    found = step(rows)
    assert (found["reward/a/reward_mean"], found["reward/b/reward_mean"], found["reward_mean"]) == (0.5, 5.0, 2.75)


def test_a_sample_metric_that_some_samples_lack():
    own = [{"format": 1.0}, {"format": 0.0}, {"format": None}, {}]
    rows = [sample(sample_id=i, sample_metrics=mine) for i, mine in enumerate(own)]
    found = step(rows)
    assert (found["format_mean"], found["format_count"]) == (0.5, 2.0)
    assert (found["sums/format_mean"], found["sums/format_count"]) == (0.5, 2.0)
    assert found["format_gini_mean"] == 0.5


def test_a_sample_metric_that_first_comes_late_in_a_message_is_there():
    rows = [sample(sample_id=i, sample_metrics={"k": float(i)}) for i in range(100)]
    found = step([*rows, sample(sample_id=100, sample_metrics={"k": 1.0, "late": 2.0})])
    assert found["late_mean"] == 2.0


def test_a_sample_metric_with_slashes_goes_to_its_section_and_group():
    found = step([sample(sample_metrics={"format/tags/closed": 1.0})])
    assert found["format/tags/closed_mean"] == 1.0
    assert found["sums/format/tags/closed_mean"] == 1.0


def test_an_environments_number_may_not_shadow_a_built_in():
    rows = [sample(sample_id=i, reward=1.0, sample_metrics={"reward": 9.0, "fine": 1.0}) for i in range(2)]
    found = step(rows)
    assert (found["reward_mean"], found["fine_mean"]) == (1.0, 1.0)
    assert "sums/reward_mean" not in found


def test_sample_metrics_given_as_a_struct_or_a_list_of_pairs():
    base = pl.DataFrame([sample(sample_id=i) for i in range(2)])
    as_struct = base.with_columns(pl.Series("sample_metrics", [{"x": 1.0}, {"x": None}]))
    as_pairs = base.with_columns(pl.Series("sample_metrics", [[{"key": "x", "value": 1.0}], []]))
    for frame in (as_struct, as_pairs):
        found = metrics.step_metrics(frame, pl.DataFrame())
        assert (found["x_mean"], found["x_count"]) == (1.0, 1.0)


def test_the_share_of_samples_cut_by_the_token_limit():
    rows = [sample(sample_id=i) for i in range(6)]
    rows.append(sample(sample_id=6, num_turns=3, truncated_turns=2))
    rows.append(sample(sample_id=7, truncated_turns=1))
    assert step(rows)["stop_reason_length_pct"] == 25.0


def test_lengths_within_a_group():
    rows = [sample(sample_id=i, completion_tokens=n, total_tokens=n + 5) for i, n in enumerate([100, 200, 300, 1000])]
    found = step(rows)
    assert found["group_length_max_median_ratio_mean"] == 4.0
    assert found["group_length_gini_mean"] == pytest.approx(0.4375)
    assert (found["tokens_completion_mean"], found["tokens_total_max"]) == (400.0, 1005.0)
    assert found["tokens/generated"] == 1600.0


def test_a_group_whose_median_length_is_zero_has_no_ratio():
    rows = [sample(sample_id=i, completion_tokens=n) for i, n in enumerate([0, 0, 0, 8])]
    assert "group_length_max_median_ratio_mean" not in step(rows)


def test_discards_of_a_step():
    rows = [
        *group([0.0] * 4, group_id=1, outcome="zero_advantage"),
        *group([2.0] * 4, group_id=2, outcome="zero_advantage"),
        *group([1.0] * 4, group_id=3, outcome="max_async"),
    ]
    found = step(rows)
    assert found["discarded_count"] == 12.0
    assert found["discarded_zero_advantage_pct"] == pytest.approx(66.6667, abs=1e-4)
    assert found["discarded_max_async_pct"] == pytest.approx(33.3333, abs=1e-4)
    assert found["discarded_zero_advantage_all_zero_pct"] == 50.0
    assert found["discarded_zero_advantage_all_positive_pct"] == 50.0
    assert found["discarded_zero_advantage_all_negative_pct"] == 0.0
    assert found["discarded_zero_advantage_mean_reward"] == 1.0
    assert found["discarded_pct_of_generated"] == 100.0
    assert found["discarded_tokens_total_mean"] == 9.0
    assert "reward_mean" not in found
    assert found["generated/reward_mean"] == 1.0


def test_a_step_that_discards_nothing_counts_zero_and_has_no_shares():
    found = step(group([0.0, 1.0]))
    assert (found["discarded_count"], found["discarded_pct_of_generated"], found["canceled_count"]) == (0.0, 0.0, 0.0)
    assert "discarded_zero_advantage_pct" not in found
    assert "discarded_zero_advantage_mean_reward" not in found


def test_a_step_without_samples_has_counts_and_nothing_else():
    found = step([])
    assert set(found.values()) == {0.0}
    assert all("count" in key or key.startswith("tokens/") for key in found)
    assert metrics.step_metrics(pl.DataFrame(), pl.DataFrame()) == found


def test_canceled_samples_are_counted_apart_and_their_tokens_are_generated_tokens():
    found = step([sample(outcome="canceled", reward=None, completion_tokens=7), sample(sample_id=1)])
    assert (found["canceled_count"], found["discarded_count"], found["tokens/generated"]) == (1.0, 0.0, 11.0)


def test_selection_by_filters_can_be_seen():
    rows = group([0.0, 1.0], group_id=1) + group([1.0, 1.0], group_id=2, outcome="zero_advantage")
    found = step(rows)
    assert (found["reward_mean"], found["generated/reward_mean"]) == (0.5, 0.75)


def test_a_reward_that_is_not_finite_is_counted_beside_the_mean():
    found = step([sample(reward=1.0), sample(sample_id=1, reward=math.nan)])
    assert (found["reward_mean"], found["reward_count"], found["reward_nonfinite_count"]) == (1.0, 1.0, 1.0)


def test_an_empty_completion_has_a_reward_and_the_length_zero():
    assert step([sample(completion_tokens=0, reward=0.5)])["tokens_completion_mean"] == 0.0


BASE = [
    sample(
        step=1,
        env="ab"[g % 2],
        group_id=g,
        sample_id=10 * g + i,
        reward=(7 * g + 3 * i) % 5 / 3,
        advantage=i / 7,
        outcome="trained" if g != 2 else "zero_advantage",
        completion_tokens=1 + (g * i) % 9,
        off_policy_steps=i % 2,
        sample_metrics={"x": i / 3} | ({"y": math.nan if i == 1 else 0.1 * g} if i % 2 else {}),
    )
    for g in range(5)
    for i in range(4)
]


@given(st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_rows_changes_no_bit(rng):
    rows = list(BASE)
    rng.shuffle(rows)
    assert step(rows) == step(BASE)


def test_the_numbers_of_the_groups_change_nothing():
    names = [17, 3, 99, 45, 8]
    renamed = [row | {"group_id": names[row["group_id"]], "sample_id": row["sample_id"] + 1000} for row in BASE]
    expected = step(BASE)
    assert step(renamed) == {key: pytest.approx(value, rel=1e-12) for key, value in expected.items()}


def test_the_library_needs_neither_ray_nor_torch():
    code = (
        "import sys, metrics, metrics.read, metrics.core, metrics.actor\n"
        "print({'ray', 'torch', 'wandb', 'gradio'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_big_steps_agree_with_the_definition_by_hand():
    rng = random.Random(0)
    rows = [row for g in range(20) for row in group([rng.random() for _ in range(6)], group_id=g)]
    rewards = [row["reward"] for row in rows]
    found = step(rows)
    assert found["reward_mean"] == pytest.approx(sum(rewards) / 120, rel=1e-12)
    parts = [pl.Series(rewards[6 * g : 6 * g + 6]).std() for g in range(20)]
    assert found["reward_group_std_mean"] == pytest.approx(sum(parts) / 20, rel=1e-12)
