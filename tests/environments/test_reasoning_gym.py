"""The adapter to reasoning-gym, with the real package: installed into build/ where it is not there yet."""

import sys

import pytest
from packages import require

from environments.checks import BadEnvironment
from environments.loader import load

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def package():
    """The package can be imported, here and in the processes that are started."""
    require("reasoning_gym")


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"task": "basic_arithmetic", "difficulty": 2},
        {"task": "spell_backward", "task_kwargs": {"min_word_len": 3}},
        {"task": "knights_knaves"},
        {"task": "gsm_symbolic", "num_eval": 20},
    ],
    ids=str,
)
def test_golden_answers_are_right_and_splits_apart(package, kwargs):
    environment = load("reasoning_gym", {"num_train": 50, "num_eval": 20, **kwargs})
    train, held = environment.samples("train"), environment.samples("eval")
    assert (len(train), len(held)) == (50, 20)
    assert not {sample.prompt for sample in train} & {sample.prompt for sample in held}
    for sample in held:
        assert environment.compute_reward(environment.gold_completion(sample), sample).total_reward == 1.0
        assert environment.compute_reward("", sample).total_reward < 1.0


def test_a_level_makes_problems_harder(package):
    lengths = [
        sum(len(sample.prompt) for sample in load("reasoning_gym", settings).samples("eval"))
        for settings in ({"difficulty": 0, "num_train": 20}, {"difficulty": 3, "num_train": 20})
    ]
    assert lengths[0] < lengths[1]


def test_an_answer_is_in_tags_or_the_whole_reply(package):
    environment = load("reasoning_gym", {"num_train": 5, "num_eval": 5})
    sample = environment.samples("eval")[0]
    for reply, tagged in ((sample.answer, 0), (f"<answer>0</answer> <answer> {sample.answer}\n</answer>", 1)):
        result = environment.compute_reward(reply, sample)
        assert (result.total_reward, result.sample_metrics["tagged"]) == (1.0, tagged)
    assert result.tags == {"task": "chain_sum"}


@pytest.mark.parametrize("reply", ["\x00", "\ud800", "9" * 5_000, "(" * 5_000, "nan", "[[1]]", "<answer>", "1e999"])
@pytest.mark.parametrize("task", ["chain_sum", "countdown", "mini_sudoku", "simple_equations", "rubiks_cube"])
def test_any_reply_gets_a_reward(package, task, reply):
    environment = load("reasoning_gym", {"task": task, "num_train": 2, "num_eval": 1})
    (sample,) = environment.samples("eval")
    assert 0 <= environment.compute_reward(f"<answer>{reply}</answer>", sample).total_reward < 1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"task": "chain_sums"}, "has no task 'chain_sums'; did you mean 'chain_sum'?"),
        ({"task_kwargs": {"min_term": 2}}, "has no setting 'min_term'; its settings are min_terms"),
        ({"difficulty": -1}, "has no difficulty -1"),
        ({"num_train": 0}, "must be at least 1, got 0 and 100"),
    ],
)
def test_what_the_package_does_not_have_is_refused(package, kwargs, message):
    with pytest.raises(BadEnvironment) as caught:
        load("reasoning_gym", kwargs)
    assert message in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "environments.reasoning_gym", None)
    monkeypatch.delitem(sys.modules, "environments.reasoning_gym")
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(BadEnvironment, match=r'install it with: pip install "telescope-on-ray\[reasoning\]"'):
        load("reasoning_gym", {})
