"""The books: every sample in one bin."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metrics.ids import Ids
from metrics.ledger import balance


def test_what_is_started_and_in_no_bin_is_in_flight():
    found = balance(10, {"trained": 4, "error": 1})
    assert (found["ledger/in_flight"], found["ledger/trained"], found["ledger/canceled"]) == (5.0, 4.0, 0.0)
    bins = {key: value for key, value in found.items() if key != "ledger/started"}
    assert sum(bins.values()) == found["ledger/started"] == 10.0


def test_more_ended_than_started_shows_as_negative():
    assert balance(1, {"trained": 2})["ledger/in_flight"] == -1.0


@given(st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=8))
def test_ids_are_the_set_of_what_was_added(batches):
    ids, truth = Ids(), set()
    for batch in batches:
        ids.add(np.array(batch, dtype=np.int64))
        truth |= set(batch)
    assert [number in ids for number in range(-1, 62)] == [number in truth for number in range(-1, 62)]
    assert Ids(ids.as_list()).as_list() == ids.as_list()
    assert len(ids.ranges) <= 31


def test_a_million_ids_in_sequence_are_one_range():
    ids = Ids()
    for first in range(0, 1_000_000, 100_000):
        ids.add(np.arange(first, first + 100_000))
    assert ids.as_list() == [[0, 999_999]]
