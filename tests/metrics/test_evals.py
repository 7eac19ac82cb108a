"""What an eval says: two means, clustered errors, pass@k."""

import polars as pl
import pytest

from metrics.evals import eval_metrics, pass_all_k, pass_at_k
from metrics.schema import samples_table
from tests.metrics.builders import sample


def rows(*problems: list[float | None], name: str = "sums", metric: str | None = None) -> pl.DataFrame:
    made = []
    for place, values in enumerate(problems):
        for value in values:
            own = {metric: value} if metric else {}
            made.append(
                sample(
                    step=0,
                    env=name,
                    outcome="eval",
                    problem_id=str(place),
                    sample_id=len(made),
                    reward=value,
                    sample_metrics=own,
                )
            )
    return pl.DataFrame(samples_table(made))


@pytest.mark.parametrize(("k", "expected"), [(1, 0.3), (5, 0.916667), (10, 1.0)])
def test_pass_at_k(k, expected):
    assert pass_at_k(10, 3, k) == pytest.approx(expected, abs=1e-6)


def test_two_of_four_completions_with_one_right():
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_all_k(4, 3, 2) == 0.5


def test_pass_at_k_needs_k_completions():
    with pytest.raises(ValueError, match="needs 1 <= k <= n"):
        pass_at_k(2, 0, 4)
    found = eval_metrics(rows([0.0, 0.0]), {})
    assert found["eval/sums/pass@2/reward"] == 0.0
    assert "eval/sums/pass@4/reward" not in found


def test_two_means_are_given_and_problems_that_failed_are_counted():
    found = eval_metrics(rows([1.0, 0.0], [0.0, 0.0], [None, None]), {})
    assert found["eval/sums/reward_mean"] == 0.25
    assert found["eval/sums/reward_requested_mean"] == pytest.approx(1 / 6)
    assert found["eval/sums/errored"] == 1.0


def test_standard_errors_are_clustered_by_problem():
    found = eval_metrics(rows([1.0, 1.0], [0.0, 0.0]), {})
    assert found["eval/sums/reward_stderr"] == pytest.approx(0.5)
    assert "eval/sums/reward_stderr" not in eval_metrics(rows([1.0, 0.0]), {})


def test_the_declared_maximum_is_what_counts_as_solved():
    frame = rows([2.0, 0.0], metric="score")
    assert eval_metrics(frame, {})["eval/sums/pass@1/score"] == 0.0
    assert eval_metrics(frame, {"sums": {"score": 2.0}})["eval/sums/pass@1/score"] == 0.5


def test_a_problem_with_too_few_completions_is_left_out_of_pass_at_k():
    found = eval_metrics(rows([1.0, 0.0], [0.0]), {})
    assert (found["eval/sums/pass@1/reward"], found["eval/sums/pass@2/reward"]) == (0.25, 1.0)


def test_pass_k_is_told_for_what_was_asked():
    frame = rows([1.0, 0.0, 0.0, 1.0, 1.0])
    found = eval_metrics(frame, {}, {"sums": [1, 3, 8]})
    assert {key for key in found if "pass" in key} == {
        "eval/sums/pass@1/reward",
        "eval/sums/pass^1/reward",
        "eval/sums/pass@3/reward",
        "eval/sums/pass^3/reward",
    }
    assert found["eval/sums/pass^3/reward"] == pytest.approx(0.1)
    assert "eval/sums/pass@4/reward" in eval_metrics(frame, {}, {"words": [1]})


def test_the_order_of_the_rows_changes_nothing():
    frame = rows([1.0, 0.0, 1.0], [0.0, None, 1.0])
    assert eval_metrics(frame[[5, 0, 3, 1, 4, 2]], {}) == eval_metrics(frame, {})


def test_evals_of_several_names_are_apart():
    both = pl.concat([rows([1.0]), rows([0.0], name="words")])
    found = eval_metrics(both, {})
    assert (found["eval/sums/reward_mean"], found["eval/words/reward_mean"]) == (1.0, 0.0)
