"""Statistics over values and groups: exact numbers, and what may never change them."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metrics
from metrics.numbers import (
    Column,
    block_statistics,
    gini_mean,
    group_std_mean,
    max_median_ratio_mean,
    num_tied_groups,
    statistics,
)
from metrics.population import column_of, finite_column

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)


def column(*groups: list[float]) -> Column:
    values = [value for group in groups for value in group]
    codes = [place for place, group in enumerate(groups) for _ in group]
    return finite_column(np.array(values, dtype=float), np.array(codes, dtype=np.int64))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0, 0, 1], 0.75),
        ([0, 1, 2, 3], 0.416667),
        ([1, 1, 1, 1], 0.0),
        ([0, 0, 0, 0], 0.0),
        ([5], 0.0),
        ([-1, 2], 0.5),
        ([100, 200, 300, 1000], 0.4375),
        ([1e308, 0, 0, 0], 0.75),
        ([5e-324, 0], 0.5),
    ],
)
def test_gini_of_a_group(values, expected):
    assert metrics.gini(values) == pytest.approx(expected, abs=1e-6)


def test_gini_is_absent_without_a_finite_value():
    assert metrics.gini([]) is None
    assert metrics.gini([None, math.nan, math.inf]) is None


def test_gini_leaves_absent_and_not_finite_values_out():
    assert metrics.gini([0, None, 0, math.nan, 0, 1]) == 0.75


def test_the_gini_of_a_step_is_the_plain_mean_over_groups():
    assert gini_mean(column([0, 0, 0, 1], [1, 1, 1, 1])) == 0.375


def by_definition(values: list[float]) -> float:
    total = sum(abs(value) for value in values)
    return sum(abs(a - b) for a in values for b in values) / (2 * len(values) * total) if total else 0.0


@given(st.lists(FINITE, min_size=1, max_size=12))
def test_gini_is_the_sum_over_all_pairs(values):
    assert metrics.gini(values) == pytest.approx(by_definition(values), abs=1e-9)


@given(st.lists(FINITE, min_size=1, max_size=12), st.floats(0.1, 1000))
def test_gini_stays_below_its_bound_and_does_not_depend_on_the_unit(values, unit):
    found = metrics.gini(values)
    assert -1e-12 <= found <= (len(values) - 1) / len(values) + 1e-12
    assert metrics.gini([value * unit for value in values]) == pytest.approx(found, abs=1e-9)


def test_statistics_use_the_sample_standard_deviation():
    found = statistics(column([1, 0, 0, 0], [2, 2, 0, 1]))
    assert found == {"mean": 0.75, "min": 0.0, "max": 2.0, "count": 8.0, "std": pytest.approx(0.886405, abs=1e-6)}


def test_one_value_has_no_standard_deviation():
    assert statistics(column([3.0])) == {"mean": 3.0, "min": 3.0, "max": 3.0, "count": 1.0}


def test_no_value_has_no_statistics():
    assert statistics(column()) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_leave_the_statistics_and_are_counted(bad):
    assert statistics(column([bad, 1.0, -1.0])) == {
        "mean": 0.0,
        "min": -1.0,
        "max": 1.0,
        "count": 2.0,
        "std": pytest.approx(math.sqrt(2)),
        "nonfinite_count": 1.0,
    }
    assert statistics(column([bad])) == {"nonfinite_count": 1.0}


@pytest.mark.parametrize("rows", [999, 1000, 1001])
def test_a_column_without_values_has_no_statistics_however_long_it_is(rows):
    empty = pl.Series([None] * rows, dtype=pl.Float64)
    assert statistics(column_of(empty, np.zeros(rows, dtype=np.int64))) == {}


def test_sums_of_large_counts_do_not_wrap():
    values = pl.Series([2_000_000_000] * 3, dtype=pl.Int32)
    assert statistics(column_of(values, np.zeros(3, dtype=np.int64)))["mean"] == 2_000_000_000


def test_the_spread_within_groups_is_not_the_spread_of_the_batch():
    found = column([1, 1], [9, 9])
    assert group_std_mean(found) == 0.0
    assert statistics(found)["std"] == pytest.approx(4.618802)


def test_a_group_of_one_has_no_spread():
    assert group_std_mean(column([1], [2])) is None
    assert group_std_mean(column([1], [2, 4])) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[100, 200, 300, 1000]], 4.0),
        ([[0, 0, 0, 8]], None),
        ([[0, 0, 0, 0]], 1.0),
        ([[0, 0, 0, 8], [100, 200, 300, 1000]], 4.0),
        ([[0, 0], [2, 4]], (1.0 + 4 / 3) / 2),
    ],
)
def test_how_long_a_group_waits_for_its_longest(groups, expected):
    assert max_median_ratio_mean(column(*groups)) == expected


def test_a_group_is_tied_within_the_tolerance():
    assert num_tied_groups(column([1, 1 + 1e-9], [0, 1], [5])) == (1, 2)


@given(st.lists(st.lists(FINITE, min_size=1, max_size=5), min_size=1, max_size=5), st.integers(1, 4))
def test_many_columns_at_once_are_each_column_by_itself(groups, width):
    one = column(*groups)
    values = np.stack([one.values * (i + 1) for i in range(width)])
    for row, found in zip(values, block_statistics(values, one.groups), strict=True):
        alone = Column(row, one.groups)
        expected = statistics(alone) | {"gini_mean": gini_mean(alone)}
        assert found == {key: pytest.approx(value, rel=1e-9, abs=1e-9) for key, value in expected.items()}
