import json

import pytest

from environments.base import Sample, SingleTurnEnvironment, decode_prompt, encode_prompt
from environments.batch import table_of
from environments.checks import BadEnvironment, metric_name, number, ranges

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


@pytest.mark.parametrize("prompt", [None, b"x", 3, [], [{"role": "user"}], [{"role": "user", "content": None}], ["x"]])
def test_a_prompt_is_a_text_or_messages(prompt):
    with pytest.raises(TypeError, match=r"Sample\.prompt must be a text or a list of messages"):
        Sample(prompt)


def test_metadata_is_a_dict():
    with pytest.raises(TypeError, match=r"Sample\.metadata must be a dict, got \[1\]"):
        Sample("x", metadata=[1])


@pytest.mark.parametrize(
    "prompt",
    ["plain", "", "messages:", "text:x", "messages:" + json.dumps(MESSAGES), MESSAGES, "é\n\x00", "text:"],
)
def test_every_prompt_comes_back_from_its_column(prompt):
    assert decode_prompt(encode_prompt(prompt)) == prompt


def test_a_plain_prompt_is_its_own_column():
    assert encode_prompt("2+2=") == "2+2="


@pytest.mark.parametrize("column", ["messages:not json", "messages:[]", "messages:" + "[" * 100_000])
def test_a_foreign_text_that_begins_like_messages_stays_a_text(column):
    assert decode_prompt(column) == column


def test_a_problem_id_depends_on_prompt_and_answer_only():
    assert Sample("a", 1, {"x": 1}).problem_id == Sample("a", 1).problem_id
    assert len({Sample("a", 1).problem_id, Sample("a", 2).problem_id, Sample("b", 1).problem_id}) == 3


def test_a_batch_needs_one_completion_a_sample():
    with pytest.raises(ValueError, match="one completion a sample is wanted, got 1 and 2"):
        table_of([Sample("a")], ["x", "y"])


def test_a_class_that_defines_nothing_says_what_to_define():
    with pytest.raises(NotImplementedError, match=r"must define samples\(split\)"):
        SingleTurnEnvironment().samples("train")
    with pytest.raises(NotImplementedError, match="embedded policy is warmed up"):
        SingleTurnEnvironment().worked_examples(0)
    with pytest.raises(TypeError, match="SingleTurnEnvironment takes no setting 'size'"):
        SingleTurnEnvironment(size=1)


@pytest.mark.parametrize("name", ["a", "a/b/c", "Größe", "a b", "🎉", "x" * 200])
def test_a_metric_may_have_any_readable_name(name):
    assert metric_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", "\x00", "a\x7f", "a\u2028b", "\ud800", "x" * 201, "advantage"]
)
def test_a_metric_name_that_is_no_key_is_refused(name):
    with pytest.raises(ValueError, match="sample metric"):
        metric_name(name)


def test_a_number_from_any_library_is_a_float():
    torch = pytest.importorskip("torch")
    assert number(torch.tensor(1.0), "x") == 1.0
    assert number(torch.tensor(True), "x") == 1.0
    with pytest.raises(TypeError, match="x must be a number, got tensor"):
        number(torch.tensor([1.0]), "x")


def test_ranges_keep_their_sides():
    declared = {"a": {"min": 0, "max": 2}, "b": {"max": 1.5, "invert": True}, "c": {}}
    assert ranges(declared, "x") == {
        "a": {"min": 0.0, "max": 2.0, "invert": False},
        "b": {"max": 1.5, "invert": True},
        "c": {"invert": False},
    }


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], "x: metrics_ranges must be a dict, got [] (list)"),
        ({"a": 1}, "'a' must be a dict of 'min', 'max' and 'invert', got 1 (int)"),
        ({"a": {"mn": 1}}, "'a' must be a dict of 'min', 'max' and 'invert', got {'mn': 1} (dict)"),
        ({"a": {"min": 2, "max": 1}}, "'a': 'min' must be below 'max', got 2.0 and 1.0"),
        ({"a": {"min": "0"}}, "'a': 'min' must be a number, got '0' (str)"),
        ({"a": {"min": float("nan")}}, "'a': 'min' must be finite, got nan (float)"),
        ({"a": {"invert": 1}}, "'a': 'invert' must be true or false, got 1 (int)"),
        ({"a//b": {}}, "every part between '/' needs at least one character"),
    ],
)
def test_ranges_that_say_nothing_sensible_are_refused(declared, message):
    with pytest.raises(BadEnvironment) as caught:
        ranges(declared, "x")
    assert message in str(caught.value)
