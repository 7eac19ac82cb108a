"""app.reduce: sums that are divided once."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.reduce import Sums

# The same cases every time, and a busy machine is no failure.
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def all_reduced(ranks: list[Sums]) -> dict[str, float]:
    """What every rank has after its vectors were added up and compared over all ranks."""
    added = [sum(parts) for parts in zip(*(rank.added() for rank in ranks), strict=True)]
    largest = [max(parts) for parts in zip(*(rank.largest() for rank in ranks), strict=True)]
    return ranks[0].reduced(added, largest).values()


def test_a_mean_of_unequal_parts_is_not_the_mean_of_their_means():
    sums = Sums()
    sums.add_mean("entropy", total=1.0, count=1)
    sums.add_mean("entropy", total=0.0, count=9)
    assert sums.values() == {"entropy": 0.1}


def test_a_mean_of_nothing_is_absent_and_never_divides():
    sums = Sums()
    sums.add_mean("entropy", total=0.0, count=0)
    assert sums.values() == {}


def test_a_masked_row_leaves_the_mean():
    sums = Sums()
    sums.add_mean("kl", total=0.6, count=2)
    sums.add_mean("kl", total=0.0, count=0)
    assert sums.values() == {"kl": pytest.approx(0.3)}


def test_each_kind():
    sums = Sums()
    sums.add_sum("tokens", 3)
    sums.add_sum("tokens", 4)
    sums.add("largest", "max", [-2.0])
    sums.add("largest", "max", [-1.0])
    sums.add("ess", "ess", [3.5, 5.25, 3])
    assert sums.values() == {"ess": pytest.approx(3.5**2 / (3 * 5.25)), "largest": -1.0, "tokens": 7.0}


def test_declared_keys_without_a_value_are_absent_but_in_the_vectors():
    sums = Sums({"a": "mean", "b": "max", "c": "ess", "d": "sum"})
    assert sums.values() == {"d": 0.0}
    assert sums.added() == [0.0] * 6
    assert sums.largest() == [-math.inf]


def test_weights_of_zero_have_no_effective_share():
    sums = Sums()
    sums.add("ess", "ess", [0.0, 0.0, 4])
    assert sums.values() == {}


def test_vectors_are_in_the_order_of_the_keys_whatever_the_order_of_adding():
    first, second = Sums(), Sums()
    first.add_mean("b", 1.0, 2)
    first.add_sum("a", 5.0)
    second.add_sum("a", 6.0)
    second.add_mean("b", 3.0, 4)
    assert (first.added(), second.added()) == ([5.0, 1.0, 2.0], [6.0, 3.0, 4.0])
    assert all_reduced([first, second]) == {"a": 11.0, "b": pytest.approx(4 / 6)}


@PROPERTY
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), min_size=1, max_size=30))
def test_ranks_and_microbatches_change_nothing(rows):
    kinds = {"m": "mean", "s": "sum", "x": "max", "e": "ess"}
    ranks, whole = [Sums(kinds) for _ in range(4)], Sums(kinds)
    for rank, value in rows:
        part = Sums()
        part.add_mean("m", value, 1)
        part.add_sum("s", value)
        part.add("x", "max", [value])
        part.add("e", "ess", [abs(value), value * value, 1])
        ranks[rank].merge(part)
        whole.merge(part)
    assert all_reduced(ranks) == pytest.approx(whole.values(), rel=1e-9, abs=1e-9)
    values = [value for _, value in rows]
    assert whole.values()["m"] == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert whole.values()["x"] == max(values)


@pytest.mark.parametrize("order", [[math.nan, 1.0], [1.0, math.nan]])
def test_a_maximum_keeps_not_a_number(order):
    sums = Sums()
    for value in order:
        sums.add("x", "max", [value])
    assert math.isnan(sums.values()["x"])


def test_one_key_has_one_kind():
    sums = Sums()
    sums.add_mean("x", 1.0, 1)
    with pytest.raises(ValueError, match="metric 'x' is of kind mean, got sum"):
        sums.add_sum("x", 1.0)


def test_parts_of_a_wrong_number_are_refused():
    with pytest.raises(ValueError, match="metric 'x': got 1 parts of kind 'mean'"):
        Sums().add("x", "mean", [1.0])


def test_vectors_of_other_keys_are_refused():
    sums = Sums({"a": "mean"})
    with pytest.raises(ValueError, match=r"got 3 \+ 0 numbers, wanted 2 \+ 0: all ranks need the same keys"):
        sums.reduced([1.0, 2.0, 3.0], [])


def test_merging_leaves_the_other_alone():
    first, second = Sums(), Sums()
    second.add_sum("a", 1.0)
    first.merge(second)
    first.add_sum("a", 1.0)
    assert second.values() == {"a": 1.0}
