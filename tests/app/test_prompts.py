import pytest

from app.prompts import BLOCK, PromptOrder


def test_an_epoch_draws_every_prompt_once_before_any_again():
    order = PromptOrder([10], [1.0], seed=3)
    epochs = [[order.at(group).sample for group in range(start, start + 10)] for start in (0, 10)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]


def test_each_environment_has_epochs_of_its_own():
    order = PromptOrder([5, 7], [1.0, 1.0], seed=0)
    places = [order.at(group) for group in range(200)]
    for environment, size in enumerate([5, 7]):
        drawn = [place.sample for place in places if place.environment == environment]
        assert sorted(drawn[:size]) == list(range(size))


def test_weights_are_shares():
    order = PromptOrder([10, 10], [3.0, 1.0], seed=0)
    first = sum(order.at(group).environment == 0 for group in range(2 * BLOCK))
    assert first / (2 * BLOCK) == pytest.approx(0.75, abs=0.02)


def test_a_place_is_a_function_of_seed_and_group_in_any_order_of_asking():
    one, other = PromptOrder([9, 4], [1, 2], seed=5), PromptOrder([9, 4], [1, 2], seed=5)
    far = other.at(BLOCK + 17)
    assert [one.at(group) for group in range(BLOCK + 18)][-1] == far
    assert [other.at(g) for g in range(50)] == [one.at(g) for g in range(50)]
    assert [PromptOrder([9, 4], [1, 2], seed=6).at(g) for g in range(50)] != [one.at(g) for g in range(50)]


def test_an_empty_environment_is_refused():
    with pytest.raises(ValueError, match="needs prompts"):
        PromptOrder([3, 0], [1, 1], seed=0)
