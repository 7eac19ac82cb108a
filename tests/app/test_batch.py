import pyarrow as pa
import pytest

from app.batch import SHARE, BatchBuilder
from app.trainer_data import read_share
from tests.app.tiny import group, scored, tiny_config


def builder(ranks: int = 1, step: int = 1, **config) -> BatchBuilder:
    return BatchBuilder(tiny_config(**config), step, ranks)


def outcomes(batch) -> dict[int, str]:
    return dict(zip(batch.rows["sample_id"].to_pylist(), batch.rows["outcome"].to_pylist(), strict=True))


def filled(one: BatchBuilder, start: int = 0) -> BatchBuilder:
    """Groups that can be trained, until the step is complete."""
    for group_id in range(start, start + 20):
        if one.complete():
            return one
        one.add(group(group_id, [1, 0, 0, 0]))
    raise AssertionError("never complete")


def test_a_step_is_complete_with_its_number_of_trainable_groups():
    one = builder()
    assert [one.add(group(g, [1, 0, 0, 0])) for g in range(4)] == [0, 0, 0, 0]
    assert one.complete()
    batch = one.take()
    assert batch.step == 1
    assert one.step == 2
    assert batch.rows["advantage"].to_pylist()[:4] == pytest.approx([1.49970, -0.49990, -0.49990, -0.49990], abs=1e-5)


def test_a_tied_group_is_discarded_and_given_back():
    one = builder()
    assert one.add(group(0, [1, 1, 1, 1])) == 1
    assert not one.complete()
    batch = filled(one, 1).take()
    assert [outcomes(batch)[i] for i in range(4)] == ["zero_advantage"] * 4
    assert batch.rows.num_rows == 20


def test_a_tied_group_is_kept_when_the_config_says_so():
    one = builder(discard_group_zero_advantage=False)
    assert one.add(group(0, [1, 1, 1, 1])) == 0
    assert set(outcomes(filled(one, 1).take()).values()) == {"trained"}


def test_staleness_is_tested_before_zero_advantage():
    one = builder(step=5, max_async_rollout=1)
    assert one.add(group(0, [1, 1, 1, 1], versions=[2, 3, 4])) == 1
    judged = one.discarded[0][0]
    assert (judged["outcome"], judged["off_policy_steps"]) == ("max_async", 2)


def test_off_policy_steps_count_from_the_oldest_token():
    one = builder(step=5, max_async_rollout=2)
    one.add(group(0, [1, 0, 0, 0], versions=[3, 4, 4]))
    assert one.kept[0][1][0]["off_policy_steps"] == 1


def test_an_error_leaves_the_mean_and_its_group_goes_on():
    one = builder()
    samples = group(0, [1, 1, 0, None])
    samples[3]["error"] = "compute_reward raised ZeroDivisionError"
    one.add(samples)
    batch = filled(one, 1).take()
    rows = batch.rows.to_pylist()[:4]
    assert [row["outcome"] for row in rows] == ["trained"] * 3 + ["error"]
    assert rows[3]["outcome_reason"] == "compute_reward raised ZeroDivisionError"
    assert rows[3]["advantage"] is None
    assert sum(row["advantage"] for row in rows[:3]) == pytest.approx(0)


def test_one_survivor_of_a_group_cannot_be_compared_and_is_an_error_too():
    one = builder()
    samples = group(0, [1, None, None, None])
    for sample in samples[1:]:
        sample["error"] = "took longer than 2 s"
    assert one.add(samples) == 1
    assert [s["outcome"] for s in one.discarded[0]] == ["error"] * 4


def test_an_aborted_completion_is_canceled_and_keeps_its_tokens():
    one = builder()
    assert one.add(group(0, [None] * 4, finish="abort")) == 1
    rows = filled(one, 1).take().rows.to_pylist()
    canceled = [row for row in rows if row["outcome"] == "canceled"]
    assert len(canceled) == 4
    assert canceled[0]["completion_tokens"] == 3


def test_a_completion_without_tokens_is_filtered_and_the_others_are_trained():
    one = builder()
    samples = group(0, [1, 0, 0, 1])
    samples[3] |= {"token_ids": [], "rollout_logprobs": [], "versions": []}
    one.add(samples)
    assert [s["outcome"] for s in one.kept[0][1]] == ["trained"] * 3 + ["filtered"]


def test_discards_beyond_the_cap_are_not_replaced_and_the_batch_gets_smaller():
    one = builder(max_discards_per_step=1)
    returned = [one.add(group(g, [0, 0, 0, 0])) for g in range(6)]
    assert returned == [1, 1, 1, 1, 0, 0]
    assert not one.complete()
    one.add(group(6, [1, 0, 0, 0]))
    one.add(group(7, [1, 0, 0, 0]))
    batch = one.take()
    assert sum(outcome == "trained" for outcome in outcomes(batch).values()) == 8


def test_a_step_in_which_nothing_can_be_trained_is_an_empty_batch():
    one = builder(max_discards_per_step=0)
    for g in range(4):
        one.add(group(g, [0, 0, 0, 0]))
    batch = one.take()
    assert batch.shares[0]["update_packs"] == []
    assert batch.rows.num_rows == 16


def as_table(shares: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(shares, schema=SHARE)


def test_the_order_of_arrival_does_not_matter():
    forward, backward = builder(), builder()
    for g in range(4):
        forward.add(group(g, [g, 0, 1, 0]))
        backward.add(group(3 - g, [3 - g, 0, 1, 0]))
    assert as_table(forward.take().shares) == as_table(backward.take().shares)


def test_every_sample_is_in_exactly_one_bin_of_one_step():
    one = builder(max_discards_per_step=1)
    seen: list[int] = []
    for g in range(40):
        one.add(group(g, [1, 0, 0, 0] if g % 3 else [0, 0, 0, 0]))
        if one.complete():
            seen += outcomes(one.take())
    waiting = [sample["sample_id"] for samples in (*(s for _, s in one.kept), *one.discarded) for sample in samples]
    assert sorted(seen + waiting) == list(range(160))


def test_ranks_get_as_many_tokens_where_prompts_stand_once():
    one = builder(ranks=2, max_prompt_tokens=100, max_tokens=60, seq_len=160)
    for group_id in range(4):
        prompt, length = (100, 2) if group_id == 0 else (10, 50)
        tokens = {"token_ids": [9] * length, "rollout_logprobs": [-1.0] * length, "versions": [0] * length}
        said = tokens | {"prompt_ids": [group_id] * prompt}
        one.add([scored(group_id, index, float(index == 0), **said) for index in range(4)])
    shares = [read_share(pa.Table.from_pylist([share], schema=SHARE)) for share in one.take().shares]
    least, most = sorted(sum(pack.token_ids.numel() for pack in share.packs) for share in shares)
    assert most <= 1.1 * least  # 1.67 where each sample counts with its prompt


def test_ranks_get_the_same_number_of_packs_and_all_trained_tokens_once():
    shares = filled(builder(ranks=3)).take().shares
    assert len({tuple(share["update_packs"]) for share in shares}) == 1
    ids = sorted(i for share in shares for i in share["sample_ids"])
    assert ids == list(range(16))
    assert set(shares[0]) == set(SHARE.names)


def test_prompt_tokens_are_never_trained():
    share = filled(builder()).take().shares[0]
    assert sum(share["trained"]) == sum(share["sequence_tokens"]) - 3 * len(share["sample_ids"])


def test_log_probabilities_must_match_tokens():
    one = builder()
    for g in range(4):
        one.add(group(g, [1, 0, 0, 0], rollout_logprobs=[-1.0]))
    with pytest.raises(ValueError, match="1 values for"):
        one.take()


def test_two_updates_split_the_batch_by_seed():
    first = filled(builder(minibatches=2)).take().shares[0]
    again = filled(builder(minibatches=2)).take().shares[0]
    other = filled(builder(minibatches=2, seed=1)).take().shares[0]
    assert len(first["update_packs"]) == 2
    assert as_table([first]) == as_table([again])
    assert first["sample_ids"] != other["sample_ids"]


def test_a_step_waits_for_a_group_that_would_be_too_old_for_the_next_one():
    """One batch ahead: eight groups have started with version 0 and must be in steps 1 and 2, four each."""
    one = builder(max_async_rollout=1, step=2)
    one.settled[0] = 4  # step 1
    for g in (4, 5, 6):
        one.add(group(g, [1, 0, 0, 0]), version=0)
    for g in (8, 9):
        one.add(group(g, [1, 0, 0, 0], versions=[1]), version=1)
    assert one.complete()
    started = {0: 8, 1: 12}
    assert not one.complete(lambda version: [started[v] for v in range(version, 2)])
    one.add(group(7, [1, 0, 0, 0]), version=0)
    assert one.complete(lambda version: [started[v] for v in range(version, 2)])
    assert {s["group_id"] for s in one.take().rows.to_pylist()} == {4, 5, 6, 7}
    assert [version for version, _ in one.kept] == [1, 1]


def test_places_that_are_lost_are_filled_by_groups_that_wait():
    one = builder(max_discards_per_step=0)
    one.add(group(0, [0, 0, 0, 0]))
    for g in range(1, 5):
        one.add(group(g, [1, 0, 0, 0]))
    assert sum(outcome == "trained" for outcome in outcomes(one.take()).values()) == 16
    assert one.lost == 1
