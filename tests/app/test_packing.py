"""app.packing: packs, ranks and optimiser updates of a step."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.packing import minibatches, pack, pack_groups, share

# The same cases every time, and a busy machine is no failure.
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

LENGTHS = st.lists(st.integers(1, 100), max_size=60)


def test_first_fit_decreasing():
    lengths = [60, 50, 40, 30, 20]
    assert [[lengths[i] for i in p] for p in pack(lengths, 100)] == [[60, 40], [50, 30, 20]]


def test_the_order_of_arrival_does_not_change_the_packs_lengths():
    lengths = [20, 40, 60, 30, 50]
    assert [[lengths[i] for i in p] for p in pack(lengths, 100)] == [[60, 40], [50, 30, 20]]


def test_nothing_to_pack():
    assert pack([], 100) == []
    assert share([], [], 3) == [[], [], []]
    assert minibatches(0, 4, 0) == []


def test_a_sample_that_fills_a_pack_fits():
    assert pack([100, 100], 100) == [[0], [1]]


@pytest.mark.parametrize("length", [101, 0, -1])
def test_a_sample_that_cannot_be_packed_is_refused_by_name(length):
    with pytest.raises(ValueError, match=f"sample 1 has {length} tokens, wanted 1 to seq_len = 100"):
        pack([5, length], 100)


@PROPERTY
@given(LENGTHS)
def test_every_sample_is_in_one_pack_and_no_pack_is_too_long(lengths):
    packs = pack(lengths, 100)
    assert sorted(i for p in packs for i in p) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in p) <= 100 for p in packs)
    # First fit leaves at most one pack half empty or less.
    assert sum(sum(lengths[i] for i in p) <= 50 for p in packs) <= 1


def test_a_group_stays_together_and_its_prompt_counts_once():
    prompts, lengths, groups = [40] * 6, [50, 60, 70, 50, 60, 70], [7, 7, 7, 8, 8, 8]
    assert pack_groups(prompts, lengths, groups, 200) == [[2, 1, 0, 5, 4, 3]]  # 2 x (40 + 30 + 20 + 10)
    assert pack_groups(prompts, lengths, groups, 199) == [[2, 1, 0], [5, 4, 3]]
    assert pack_groups(prompts, lengths, groups, 90) == [[2, 1], [5, 4], [0], [3]]  # 90, 90, 50, 50
    assert pack_groups([0] * 6, lengths, groups, 70) == [[i] for i in (2, 5, 1, 4, 0, 3)]


def test_a_sample_of_a_group_that_cannot_be_packed_is_refused_by_name():
    with pytest.raises(ValueError, match="sample 1 has 101 tokens, wanted 1 to seq_len = 100"):
        pack_groups([40, 40], [50, 101], [7, 7], 100)


SAMPLES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 5)), max_size=60)


@PROPERTY
@given(SAMPLES)
def test_samples_of_groups_are_in_one_pack_each_and_no_pack_is_too_long(samples):
    prompts = [10 * group + 1 for _, _, group in samples]  # one of a group, as in a run
    lengths = [prompt + more for prompt, (_, more, _) in zip(prompts, samples, strict=True)]
    groups = [group for _, _, group in samples]
    packs = pack_groups(prompts, lengths, groups, 101)
    assert sorted(i for p in packs for i in p) == list(range(len(samples)))
    for p in packs:
        runs = [i for k, i in enumerate(p) if k == 0 or groups[p[k - 1]] != groups[i]]
        assert sum(lengths[i] - prompts[i] for i in p) + sum(prompts[i] for i in runs) <= 101


@PROPERTY
@given(LENGTHS, st.integers(1, 5))
def test_ranks_get_as_many_packs_each_and_every_pack_once(lengths, world):
    packs = pack(lengths, 100)
    ranks = share(packs, lengths, world)
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) == -(-len(packs) // world)
    assert sorted(p for rank in ranks for p in rank if p) == sorted(packs)


@PROPERTY
@given(LENGTHS, st.integers(1, 5))
def test_ranks_differ_by_less_than_two_packs_of_tokens(lengths, world):
    ranks = share(pack(lengths, 100), lengths, world)
    loads = [sum(lengths[i] for p in rank for i in p) for rank in ranks]
    assert max(loads) - min(loads) <= 200


def test_packs_are_dealt_by_tokens():
    assert share([[0], [1], [2], [3]], [90, 80, 30, 10], 2) == [[[0], [3]], [[1], [2]]]


def test_a_rank_with_fewer_packs_gets_dummies():
    assert share([[0], [1], [2]], [9, 8, 7], 2) == [[[0], []], [[1], [2]]]


def test_no_ranks_are_refused():
    with pytest.raises(ValueError, match="got 0, wanted at least 1 rank"):
        share([], [], 0)


def test_one_minibatch_keeps_the_order():
    assert minibatches(5, 1, seed=3) == [[0, 1, 2, 3, 4]]


@PROPERTY
@given(st.integers(1, 50), st.integers(1, 10), st.integers(0, 5))
def test_minibatches_hold_every_sample_once_in_near_equal_parts(num_samples, parts, seed):
    split = minibatches(num_samples, parts, seed)
    sizes = [len(part) for part in split]
    assert len(split) == min(parts, num_samples)
    assert max(sizes) - min(sizes) <= 1
    assert sorted(i for part in split for i in part) == list(range(num_samples))


def test_the_seed_decides_the_shuffle():
    first = minibatches(20, 2, "7/1")
    assert first == minibatches(20, 2, "7/1")
    assert first != minibatches(20, 2, "7/2")


def test_no_parts_are_refused():
    with pytest.raises(ValueError, match="got 0, wanted at least 1"):
        minibatches(5, 0, 0)
