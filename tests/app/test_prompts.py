from dataclasses import dataclass

import pytest

from app.prompts import BLOCK, PromptOrder, weight_at


@dataclass
class Entry:
    weight: float
    curriculum: list[list[float]] | None = None


PINNED = [(1, 0), (1, 1), (1, 3), (0, 5), (0, 6), (1, 2)]


def test_an_epoch_draws_every_prompt_once_before_any_again():
    order = PromptOrder([10], [1.0], seed=3)
    epochs = [[order.at(group).sample for group in range(start, start + 10)] for start in (0, 10)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]


def test_each_environment_has_epochs_of_its_own():
    order = PromptOrder([5, 7], [1.0, 1.0], seed=0)
    draws = [order.at(group) for group in range(200)]
    for environment, size in enumerate([5, 7]):
        drawn = [draw.sample for draw in draws if draw.environment == environment]
        assert sorted(drawn[:size]) == list(range(size))


def test_weights_are_shares():
    order = PromptOrder([10, 10], [3.0, 1.0], seed=0)
    first = sum(order.at(group).environment == 0 for group in range(2 * BLOCK))
    assert first / (2 * BLOCK) == pytest.approx(0.75, abs=0.02)


def test_a_draw_is_a_function_of_seed_and_group_in_any_order_of_asking():
    one, other = PromptOrder([9, 4], [1, 2], seed=5), PromptOrder([9, 4], [1, 2], seed=5)
    far = other.at(BLOCK + 17)
    assert [one.at(group) for group in range(BLOCK + 18)][-1] == far
    assert [other.at(g) for g in range(50)] == [one.at(g) for g in range(50)]
    assert [PromptOrder([9, 4], [1, 2], seed=6).at(g) for g in range(50)] != [one.at(g) for g in range(50)]


def test_an_empty_environment_is_refused():
    with pytest.raises(ValueError, match="needs prompts"):
        PromptOrder([3, 0], [1, 1], seed=0)


def test_a_curriculum_moves_the_shares_with_the_batches_drawn():
    early, late = Entry(1.0, [[0, 1.0], [100, 0.0]]), Entry(0.5, [[0, 0.0], [100, 1.0]])
    order = PromptOrder([50, 50], lambda batch: [weight_at(entry, batch) for entry in (early, late)], 0, 64)
    drawn = [order.at(group).environment for group in range(64 * 120)]
    assert set(drawn[:64]) == {0}
    assert sum(drawn[64 * 45 : 64 * 55]) / (64 * 10) == pytest.approx(0.5, abs=0.06)
    assert set(drawn[64 * 100 :]) == {1}


def test_a_curriculum_is_the_same_in_any_order_of_asking():
    def order():
        return PromptOrder([9, 4], lambda batch: [1.0, batch / 100], seed=5, groups_per_batch=4)

    one, other = order(), order()
    far = other.at(BLOCK + 3)
    assert [one.at(group) for group in range(BLOCK + 4)][-1] == far


@pytest.mark.parametrize(("batch", "weight"), [(0, 1.0), (5, 1.0), (10, 1.0), (15, 0.6), (20, 0.2), (99, 0.2)])
def test_a_weight_is_linear_between_its_points(batch, weight):
    assert weight_at(Entry(7.0, [[0, 1.0], [10, 1.0], [20, 0.2]]), batch) == pytest.approx(weight)
    assert weight_at(Entry(7.0), batch) == 7.0


def test_the_order_of_constant_weights_is_what_it_is():
    """A resumed run must draw the prompts that its first attempt would have drawn."""
    draws = [PromptOrder([9, 4], [1, 2], seed=5).at(group) for group in range(6)]
    assert [(draw.environment, draw.sample) for draw in draws] == PINNED
