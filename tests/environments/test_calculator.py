"""calculator: arithmetic that is read and never executed, and conversations with a tool."""

from fractions import Fraction

import pytest

from environments.base import Sample
from environments.calculator import calculate
from environments.checks import BadEnvironment
from environments.loader import load
from environments.support.arithmetic import worked_out
from environments.turn import at_once, replayed

CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "%s"}}</tool_call>'


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("7/2", Fraction(7, 2)),
        ("-3 - -2", -1),
        ("0.1+0.2", Fraction(3, 10)),
        ("2.50", 2.5),
        (".5 + 1.", Fraction(3, 2)),
        ("12345678901234567890.1 - 12345678901234567890", Fraction(1, 10)),
    ],
)
def test_arithmetic_is_exact(expression, value):
    assert worked_out(expression)[0] == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("2**99", r"only \+ - \* / and brackets"),
        ("7//2", r"only \+ - \* / and brackets"),
        ("1/(2-2)", "division by zero"),
        ("__import__('os')", r"digits, \+ - \* / and brackets only"),
        ("1e999", "digits"),
        ("", "not an expression"),
        ("(1", "not an expression"),
        ("1 2", "not an expression"),
        ("(" * 100 + "1" + ")" * 100, ""),
        ("1" * 300, "at most 200 characters, got 300"),
        ("()", r"only \+ - \* / and brackets"),
        ("1.2.3", "not an expression"),
    ],
)
def test_what_is_no_arithmetic_is_an_error_for_the_policy_to_read(expression, message):
    with pytest.raises(ValueError, match=message or None):
        calculate(expression)


def test_a_result_that_grows_out_of_hand_is_refused():
    with pytest.raises(ValueError, match="the result has more than 40 digits"):
        calculate("*".join(["99999"] * 30))


def conversation(*said, answer=21, **kwargs):
    environment = load("calculator", kwargs)
    state = at_once(replayed(environment, Sample("p", answer, {"expression": "1+2"}), said))
    result = environment.compute_reward(state)
    metrics = {**environment.conversation_metrics(state), **result.sample_metrics}
    return state, result.total_reward, metrics


def test_a_result_of_the_tool_is_said_back():
    state, reward, metrics = conversation(CALL % "(3+4)*3", "It is 21.")
    assert [turn["content"] for turn in state.turns] == [CALL % "(3+4)*3", "21", "It is 21."]
    assert (reward, metrics["used_tool"], metrics["calculate_calls"], metrics["tool_success_rate"]) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("said", "reward", "used"),
    [
        (["21"], 1, 0),
        (["20 or 21"], 1, 0),
        (["21 or 20"], 0, 0),
        ([CALL % "1/0", "21"], 1, 0),
        ([CALL % "3*7"], 0, 1),
        (["9" * 10_000], 0, 0),
        ([""], 0, 0),
        (["twenty-one"], 0, 0),
    ],
)
def test_the_last_number_of_the_last_turn_counts(said, reward, used):
    _, got, metrics = conversation(*said)
    assert (got, metrics["used_tool"]) == (reward, used)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("It is 1,234.", 1234),
        ("-1,234,567", -1234567),
        ("1, 234", 234),
        ("1,2345", 2345),
        ("42 = 17-25", 25),
        ("17--25", -25),
        ("x=-25", -25),
        ("1,234.0", 1234),
    ],
)
def test_a_number_may_have_commas_and_a_minus_after_a_digit_is_an_operator(said, answer):
    assert conversation(said, answer=answer)[1] == 1


def test_an_error_of_the_tool_is_told_and_counted():
    state, _, metrics = conversation(CALL % "1/0", "sorry")
    assert state.turns[1]["content"] == "error: ValueError: division by zero"
    assert (metrics["tool_error_count"], metrics["tool_success_count"]) == (1, 0)


def test_plain_prompts_are_texts_and_others_tell_the_tool_to_a_chat_model():
    assert isinstance(load("calculator", {"plain": True}).samples("train")[0].prompt, str)
    system, question = load("calculator", {}).samples("train")[0].prompt
    assert '"name": "calculate"' in system["content"]
    assert question["content"].startswith("What is ")


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(BadEnvironment, match="max_number must be at least 20"):
        load("calculator", {"max_number": 3})
