import re

import pytest

from environments.checks import BadEnvironment, ranges
from environments.parts import Part, Parts

PARTS = Parts(correct=Part(weight=2.0), length=Part(weight=0.5, max=200, invert=True), noted=Part(weight=0.0))


def test_a_reward_is_the_weighted_sum_of_shares_of_ranges():
    result = PARTS.reward({"correct": True, "length": 50, "noted": 0.3}, {"answer": "4"}, {"level": "easy"})
    assert result.total_reward == pytest.approx(2.0 + 0.5 * 0.75)
    assert result.sample_metrics == {"correct": 1.0, "length": 50.0, "noted": 0.3}
    assert (result.golden_answers, result.tags) == ({"answer": "4"}, {"level": "easy"})
    assert PARTS.best == 2.5


def test_the_ranges_are_what_an_environment_declares():
    assert ranges(PARTS.ranges, "x")["length"] == {"min": 0.0, "max": 200.0, "invert": True}


def test_a_part_that_could_not_be_judged_leaves_the_total_unjudged():
    result = PARTS.reward({"correct": None, "length": 0, "noted": 0})
    assert result.total_reward is None
    assert result.sample_metrics == {"correct": None, "length": 0.0, "noted": 0.0}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"correct": 1}, "the parts of this reward are correct, length, noted, got ['correct'] (list)"),
        ({"correct": 1.5, "length": 0, "noted": 0}, "part 'correct' is declared as 0 to 1, got 1.5"),
        ({"correct": float("nan"), "length": 0, "noted": 0}, "part 'correct' must be finite"),
    ],
)
def test_values_that_would_weigh_something_else_are_refused(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PARTS.reward(values)


@pytest.mark.parametrize("part", [{"min": 1.0}, {"max": float("inf")}, {"weight": -1.0}, {"weight": float("nan")}])
def test_a_part_that_cannot_weigh_is_refused(part):
    with pytest.raises(BadEnvironment):
        Part(**part)


def test_a_part_has_the_name_of_a_metric():
    with pytest.raises(ValueError, match="the name belongs to a built-in metric"):
        Parts(reward=Part())
    with pytest.raises(BadEnvironment, match="at least one part"):
        Parts()
