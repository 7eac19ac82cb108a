"""What every environment of the folder must do, and what single ones do."""

import itertools
from collections import Counter

import pytest

from environments.base import Sample
from environments.batch import score_table, table_of
from environments.countdown import evaluate
from environments.loader import available, load

SETTINGS = {
    "calculator": [{}, {"plain": True}],
    "code": [{}, {"num_train": 20, "partial_credit": True}],
    "countdown": [{}, {"num_numbers": 2, "num_train": 50}],
    "gsm8k": [{}],
    "math": [{}],
    "reasoning_gym": [],  # its package is not installed here: test_reasoning_gym.py
    "reverse_text": [{}, {"length": 3}],
    "wordle": [{}, {"max_turns": 2}],
    "sums": [{}, {"terms": 3, "max_digit": 9, "num_train": 400, "num_eval": 100}],
}
CASES = [(name, kwargs) for name in available() for kwargs in SETTINGS.get(name, [{}])]
NAMES = sorted({name for name, _ in CASES})


def said(environment, completion):
    """A reply as the environment reads it: in a conversation, the same in every turn."""
    turns = getattr(environment, "max_turns", 1)
    return completion if turns == 1 else [completion] * turns


def rewards(environment, samples, completions):
    table = score_table(environment, table_of(samples, completions))
    assert table["error"].null_count == table.num_rows
    return table["reward"].to_pylist()


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_splits_are_disjoint_unique_and_the_same_every_time(name, kwargs):
    train, held = (load(name, kwargs).samples(split) for split in ("train", "eval"))
    ids = [sample.problem_id for sample in [*train, *held]]
    assert len(set(ids)) == len(ids)
    assert len(held) >= 60
    assert [s.problem_id for s in load(name, kwargs).samples("train")] == ids[: len(train)]


@pytest.mark.parametrize(("name", "kwargs"), CASES)
def test_the_golden_answer_scores_the_maximum_and_the_empty_reply_less(name, kwargs):
    environment = load(name, kwargs)
    samples = environment.samples("eval")[:20]
    best = {"countdown": 2.0}.get(name, 1.0)
    golden = [environment.gold_completion(sample) for sample in samples]
    assert rewards(environment, samples, golden) == [best] * len(samples)
    assert max(rewards(environment, samples, [said(environment, "")] * len(samples))) < best / 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("completion", ["\x00", "\ud800", "9" * 5_000, "(" * 5_000, "<answer>", "é🎉", "1e999", "nan"])
def test_any_reply_gets_a_finite_reward(name, completion):
    environment = load(name, {})
    (reward,) = rewards(environment, environment.samples("eval")[:1], [said(environment, completion)])
    assert 0 <= reward < 1


@pytest.mark.parametrize("name", NAMES)
def test_metrics_stay_in_their_declared_ranges(name):
    environment = load(name, {})
    samples = environment.samples("eval")[:10]
    golden = [environment.gold_completion(sample) for sample in samples]
    table = score_table(environment, table_of(samples * 2, [*golden, *[said(environment, "?")] * 10]))
    for metric, value in itertools.chain.from_iterable(table["sample_metrics"].to_pylist()):
        declared = environment.metrics_ranges.get(metric, {})
        assert declared or name == "calculator", f"{metric} has no range"
        assert declared.get("min", value) <= value <= declared.get("max", value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(1+2)*3", 9),
        ("3-1-2", 0),
        ("3/2", 1.5),
        (" 2 * 3 ", 6),
        ("3", 3),
        ("1+1", None),  # 1 is given once
        ("4", None),  # 4 is not given
        ("3/(1+2-3)", None),
        ("3/(2-2)", None),
        ("2**3", None),
        ("3//2", None),
        ("-3", None),
        ("1.0+2", None),
        ("__import__('os')", None),
        ("1,2", None),
        ("1 2", None),
        ("(1", None),
        ("", None),
        ("(" * 100 + "1" + ")" * 100, None),
        ("1" * 300, None),
    ],
)
def test_countdown_reads_arithmetic_and_nothing_else(expression, value):
    assert evaluate(expression, [1, 2, 3]) == value


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<answer>(1+2)*3</answer>", 2.0),
        ("so <answer>3*(2+1)</answer></s>", 2.0),
        ("<answer>1+2+3</answer>", 1.0),
        ("<answer>9</answer>", 0.5),
        ("<answer>9+0</answer> <answer>(1+2)*3</answer>", 0.0),
        ("(1+2)*3", 0.0),
    ],
)
def test_countdown_rewards_form_and_result(completion, reward):
    sample = Sample("p", 9, {"numbers": [1, 2, 3], "solution": "(1+2)*3"})
    result = load("countdown", {}).compute_reward(completion, sample, "</s>")
    assert result.total_reward == reward
    assert result.sample_metrics["format"] + result.sample_metrics["correct"] == reward
    assert result.golden_answers == {"expression": "(1+2)*3"}


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("countdown", {"num_numbers": 1}, "num_numbers must be 2 to 6, got 1"),
        ("countdown", {"max_target": 5}, "max_target must be 10 to 100000, got 5"),
        ("sums", {"terms": 1}, "terms must be 2 to 10 and max_digit 1 to 9, got 1 and 4"),
        ("sums", {"terms": 2}, "there are 25 sums of 2 digits up to 4: .* got 2000 and 500"),
        ("sums", {"sure": 1.5}, "sure is a share of the worked examples, 0 to 1, got 1.5"),
        ("reverse_text", {"length": 1}, "length must be 2 to 64 letters, got 1"),
        ("reverse_text", {"length": 3, "num_train": 9_000}, "num_train must be 1 to 8588 words, got 9000"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        load(name, kwargs)


def test_countdown_says_when_there_are_too_few_problems():
    environment = load(
        "countdown", {"num_numbers": 2, "max_number": 2, "max_target": 10, "num_train": 50, "num_eval": 5}
    )
    with pytest.raises(ValueError, match="55 wanted, 7 found; raise max_number or num_numbers"):
        environment.samples("train")


@pytest.mark.parametrize(
    ("completion", "reward", "single", "first"),
    [
        ("10", 1, 1, 1),
        (" 10 </s>", 1, 1, 1),
        ("10 or 11", 0, 0, 1),
        ("9 or 10", 0, 0, 0),
        ("9", 0, 1, 0),
        ("10.", 0, 1, 1),
        ("010", 0, 1, 0),
        ("", 0, 0, 0),
    ],
)
def test_sums_rewards_one_right_number_and_watches_hedging(completion, reward, single, first):
    result = load("sums", {}).compute_reward(completion, Sample("3+1+4+2+0=", "10"), "</s>")
    assert (result.total_reward, result.sample_metrics) == (reward, {"single": single, "first": first})


def test_sums_are_what_they_say():
    for sample in load("sums", {"terms": 3, "max_digit": 9, "num_train": 500}).samples("train"):
        digits = [int(digit) for digit in sample.prompt.removesuffix("=").split("+")]
        assert len(digits) == 3
        assert sample.answer == str(sum(digits))


def test_worked_sums_are_training_problems_with_rare_sums_and_sure_as_often_as_asked():
    environment = load("sums", {"sure": 0.3})
    examples = list(itertools.islice(environment.worked_examples(1), 5_000))
    right = {sample.prompt: sample.answer for sample in environment.samples("train")}
    assert all(answer in (right[prompt], f"{right[prompt]} or {int(right[prompt]) + 1}") for prompt, answer in examples)
    assert 0.27 < sum(right[prompt] == answer for prompt, answer in examples) / len(examples) < 0.33
    counts = Counter(right[prompt] for prompt, _ in examples)
    assert min(counts.values()) > 5_000 / 2 / 21 / 1.5  # 21 sums share the half that is drawn evenly
    assert examples == list(itertools.islice(environment.worked_examples(1), 5_000))
