"""app.schedule: the rate of each update."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.schedule import learning_rate

# The same cases every time, and a busy machine is no failure.
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(("update", "expected"), [(1, 0.1), (5, 0.5), (10, 1.0), (60, 0.55), (110, 0.1), (500, 0.1)])
def test_cosine_with_warm_up_and_floor(update, expected):
    rate = learning_rate(update, peak=2e-4, total=110, schedule="cosine", warmup=10, min_ratio=0.1)
    assert rate == pytest.approx(2e-4 * expected)


@pytest.mark.parametrize(("update", "expected"), [(1, 1.0), (6, 0.5), (11, 0.0), (12, 0.0)])
def test_linear_without_warm_up_begins_at_the_peak(update, expected):
    assert learning_rate(update, peak=1.0, total=11, schedule="linear") == pytest.approx(expected)


@pytest.mark.parametrize(("update", "expected"), [(1, 0.25), (4, 1.0), (5, 1.0), (10_000, 1.0)])
def test_constant_after_warm_up(update, expected):
    assert learning_rate(update, peak=1.0, total=10, warmup=4) == pytest.approx(expected)


@PROPERTY
@given(st.integers(1, 200), st.integers(0, 200), st.sampled_from(["constant", "linear", "cosine"]), st.floats(0, 1))
def test_the_rate_rises_to_the_peak_and_never_rises_again(total, warmup, schedule, min_ratio):
    settings = {"peak": 1.0, "total": total, "schedule": schedule, "warmup": min(warmup, total), "min_ratio": min_ratio}
    rates = [learning_rate(update, **settings) for update in range(1, total + 5)]
    top = max(min(warmup, total), 1)
    assert rates[top - 1] == 1.0
    assert rates[0] > 0.0
    assert all(before < after for before, after in pairwise(rates[:top]))
    assert all(before >= after - 1e-12 for before, after in pairwise(rates[top - 1 :]))
    if schedule != "constant" and total > top:
        assert rates[total - 1] == pytest.approx(min_ratio)


def test_updates_are_counted_from_one():
    with pytest.raises(ValueError, match="got 0, wanted a count from 1"):
        learning_rate(0, peak=1.0, total=10)
