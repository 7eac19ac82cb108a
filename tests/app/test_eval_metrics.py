import pytest

from app.eval_metrics import eval_metrics, pass_at_k


def sample(problem: str, reward: float | None) -> dict:
    return {"problem_id": problem, "reward": reward, "sample_metrics": []}


@pytest.mark.parametrize(("k", "expected"), [(1, 0.3), (5, 0.916667), (10, 1.0)])
def test_pass_at_k_of_three_right_out_of_ten(k, expected):
    assert pass_at_k(10, 3, k) == pytest.approx(expected, abs=1e-6)


def test_failures_are_neither_right_nor_wrong():
    rewards = {"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [None, None]}
    samples = [sample(problem, reward) for problem, both in rewards.items() for reward in both]
    values = eval_metrics("math", samples, {})
    assert values["eval/math/reward_mean"] == pytest.approx(0.25)
    assert values["eval/math/reward_requested_mean"] == pytest.approx(1 / 6)
    assert values["eval/math/errored"] == 1


def test_the_standard_error_is_of_problems_not_of_completions():
    samples = [sample("a", 1.0)] * 50 + [sample("b", 0.0)] * 50
    assert eval_metrics("x", samples, {})["eval/x/reward_stderr"] == pytest.approx(0.5)


def test_pass_at_k_is_absent_for_more_completions_than_there_are():
    samples = [sample("a", 0.0), sample("a", 0.0), sample("b", 2.0), sample("b", 0.0)]
    values = eval_metrics("x", samples, {"reward": 2.0})
    assert values["eval/x/pass@2/reward"] == 0.5
    assert values["eval/x/pass^2/reward"] == 0.0
    assert "eval/x/pass@4/reward" not in values


def test_a_metric_that_some_samples_lack_is_averaged_over_the_others():
    samples = [
        {"problem_id": "a", "reward": 1.0, "sample_metrics": [("steps", 4.0)]},
        {"problem_id": "b", "reward": 1.0, "sample_metrics": []},
    ]
    assert eval_metrics("x", samples, {})["eval/x/steps_mean"] == 4.0
