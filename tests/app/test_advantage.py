"""app.advantage: the table of the advantages, and rewards that are missing, tied or huge."""

import math
import random
import statistics

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.advantage import ALGORITHMS, advantages, tied

# The same cases every time, and a busy machine is no failure.
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

GROUP_NORMALISED = ["grpo", "cispo", "gspo", "sapo"]
# Every algorithm with each normalisation that a config allows for it.
KINDS = [(algorithm, norm) for algorithm in GROUP_NORMALISED for norm in ("group", "batch")]
KINDS += [("reinforce_pp", "batch"), ("rloo", "none"), ("dr_grpo", "none")]


def of_one_group(rewards, algorithm, norm="group"):
    return advantages(rewards, [0] * len(rewards), algorithm, norm)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        *[(algorithm, [1.49970, -0.49990, -0.49990, -0.49990]) for algorithm in GROUP_NORMALISED],
        ("rloo", [1.0, -0.33333, -0.33333, -0.33333]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("reinforce_pp", [1.49970, -0.49990, -0.49990, -0.49990]),
    ],
)
def test_one_success_in_four(algorithm, expected):
    assert of_one_group([1, 0, 0, 0], algorithm) == pytest.approx(expected, abs=5e-6)


def test_rloo_compares_with_the_mean_of_the_others():
    assert of_one_group([3.0, 1.0, 2.0], "rloo", "none") == pytest.approx([1.5, -1.5, 0.0])


@pytest.mark.parametrize("algorithm", ["grpo", "reinforce_pp"])
def test_batch_normalisation_centres_by_group_and_divides_by_the_steps_deviation(algorithm):
    rewards, groups = [1.0, 0.0, 10.0, 6.0], [5, 5, 9, 9]
    std = statistics.stdev([0.5, -0.5, 2.0, -2.0])
    expected = [value / (std + 1e-4) for value in (0.5, -0.5, 2.0, -2.0)]
    assert advantages(rewards, groups, algorithm, "batch") == pytest.approx(expected)


def test_batch_normalisation_keeps_single_rewards_until_the_steps_mean_leaves():
    expected = [value / (statistics.stdev([3.0, 1.0, 2.0]) + 1e-4) for value in (1.0, -1.0, 0.0)]
    assert advantages([3.0, 1.0, 2.0], [0, 1, 2], "reinforce_pp", "batch") == pytest.approx(expected)


@pytest.mark.parametrize(("algorithm", "norm"), KINDS)
def test_groups_may_arrive_interleaved(algorithm, norm):
    apart = advantages([1, 0, 0, 5, 3, 3], [0, 0, 0, 1, 1, 1], algorithm, norm)
    mixed = advantages([5, 1, 3, 0, 3, 0], [1, 0, 1, 0, 1, 0], algorithm, norm)
    assert mixed == [apart[3], apart[0], apart[4], apart[1], apart[5], apart[2]]


@pytest.mark.parametrize(("algorithm", "norm"), KINDS)
@pytest.mark.parametrize("reward", [0.0, 0.1, -3.0, 1e9])
def test_a_tied_group_has_advantages_of_exactly_zero(algorithm, norm, reward):
    assert of_one_group([reward] * 7, algorithm, norm) == [0.0] * 7


def test_rewards_within_the_tie_tolerance_are_not_blown_up():
    assert of_one_group([1.0, 1.0 + 1e-9], "grpo") == [0.0, 0.0]


@pytest.mark.parametrize(("algorithm", "norm"), KINDS)
def test_a_lone_sample_has_nothing_to_be_compared_with(algorithm, norm):
    assert of_one_group([5.0], algorithm, norm) == [0.0]


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_a_reward_that_is_missing_is_outside_the_groups_mean(missing):
    values = of_one_group([missing, 1.0, 1.0, 0.0], "dr_grpo")
    assert values[0] is None
    assert values[1:] == pytest.approx([1 / 3, 1 / 3, -2 / 3])


def test_a_reward_that_is_not_a_number_leaves_the_deviation_too():
    values = of_one_group([1.0, math.nan, 3.0], "grpo")
    assert values[1] is None
    scale = math.sqrt(2) + 1e-4
    assert [values[0], values[2]] == pytest.approx([-1 / scale, 1 / scale])


@pytest.mark.parametrize(("algorithm", "norm"), KINDS)
def test_rewards_that_are_all_missing_give_no_advantages(algorithm, norm):
    assert of_one_group([None, math.nan], algorithm, norm) == [None, None]
    assert advantages([], [], algorithm, norm) == []


@pytest.mark.parametrize(("algorithm", "norm"), KINDS)
def test_huge_rewards_do_not_overflow(algorithm, norm):
    values = of_one_group([1e299, -1e299, 0.0, 1e308], algorithm, norm)
    assert values[3] is None
    assert all(map(math.isfinite, values[:3]))


@PROPERTY
@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.nan)), st.integers(0, 3)), max_size=20),
    st.sampled_from(KINDS),
    st.integers(0, 100),
)
def test_order_never_matters_and_nothing_is_ever_not_finite(rows, kind, seed):
    rewards, groups = [row[0] for row in rows], [row[1] for row in rows]
    values = advantages(rewards, groups, *kind)
    assert all(value is None or math.isfinite(value) for value in values)
    assert [value is None for value in values] == [r is None or math.isnan(r) for r in rewards]
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    shuffled = advantages([rewards[i] for i in order], [groups[i] for i in order], *kind)
    for place, i in enumerate(order):
        assert shuffled[place] == (None if values[i] is None else pytest.approx(values[i], rel=1e-6, abs=1e-6))


@PROPERTY
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16), st.sampled_from(KINDS))
def test_a_groups_advantages_sum_to_zero(rewards, kind):
    assert sum(of_one_group(rewards, *kind)) == pytest.approx(0.0, abs=1e-8)


@PROPERTY
@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16), st.sampled_from(KINDS), st.floats(-50, 50))
def test_adding_a_constant_to_a_group_changes_no_advantage(rewards, kind, constant):
    before = of_one_group(rewards, *kind)
    after = of_one_group([reward + constant for reward in rewards], *kind)
    if max(rewards) - min(rewards) > 1e-6:
        assert after == pytest.approx(before, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 1], True),
        ([1.0, 1.0 + 1e-9], True),
        ([1.0, 1.0 + 1e-7], False),
        ([0, 0, None], True),
        ([2.0], False),
        ([2.0, None], False),
        ([None, math.nan], False),
        ([], False),
    ],
)
def test_tied(rewards, expected):
    assert tied(rewards) is expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1.0], [0, 0], "grpo", "group"), "got 1 rewards and 2 group ids"),
        (([1.0], [0], "ppo", "group"), "got 'ppo', wanted one of grpo"),
        (([1.0], [0], "grpo", "batches"), "got 'batches', wanted group, batch or none"),
    ],
)
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        advantages(*arguments)


def test_every_algorithm_of_a_config_has_advantages():
    from app.config import Config

    assert set(ALGORITHMS) == set(Config.model_fields["algorithm"].annotation.__args__)
