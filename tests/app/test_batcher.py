"""When a run in which nothing can be trained is given up."""

import pytest

from app.batcher import EMPTY_STEPS_LIMIT, Batcher
from metrics.schema import samples_table
from tests.metrics.builders import sample


def rows(*outcomes: str):
    return samples_table([sample(sample_id=i, outcome=o, outcome_reason=f"why {o}") for i, o in enumerate(outcomes)])


@pytest.fixture
def batcher() -> Batcher:
    made = Batcher.__new__(Batcher)
    made.empty_steps = 0
    return made


def test_steps_in_which_nothing_is_trained_end_the_run_with_the_most_common_reason(batcher):
    batcher._check_progress(rows("error"))
    batcher._check_progress(rows("error", "trained"))
    for _ in range(EMPTY_STEPS_LIMIT - 1):
        batcher._check_progress(rows("error"))
    with pytest.raises(RuntimeError, match="no sample could be trained in 3 steps; the most common reason: why filt"):
        batcher._check_progress(rows("filtered", "error", "filtered"))


def test_a_step_without_samples_says_nothing_about_them(batcher):
    """Where many groups fail at once, the places of the steps after it are lost with them."""
    for _ in range(EMPTY_STEPS_LIMIT - 1):
        batcher._check_progress(rows("error"))
    for _ in range(5):
        batcher._check_progress(rows())
    with pytest.raises(RuntimeError, match="why error"):
        batcher._check_progress(rows("error"))
