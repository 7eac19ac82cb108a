import time

import pytest
from dialogs import Llama, Quiet, Toolbox, WithMethod

from environments.base import Sample
from environments.checks import BadEnvironment
from environments.loader import load
from environments.multi_turn import State
from environments.score import Row, score_row_async
from environments.tool_calls import ToolCall, tool_calls
from environments.turn import Spoken, at_once, turn_async
from environments.worker import EnvironmentWorker

START = State(Sample("hi")).to_json()


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def turn(said: str, environment=None, state: str = START):
    import asyncio

    return asyncio.run(turn_async(environment or Toolbox(), Spoken(state, said), None))


def results(said: str, environment=None) -> list[tuple[str, bool]]:
    answered = turn(said, environment)
    assert answered.error is None
    return [
        (message["content"], message["is_error"]) if "is_error" in message else (message["content"], False)
        for message in answered.reply
    ]


def metrics(said: str, environment=None) -> dict[str, float]:
    environment = environment or Toolbox()
    return environment.get_tool_metrics(State.from_json(turn(said, environment).state))


def test_a_schema_is_made_of_types_and_docstring():
    assert Toolbox().by_name["add"].schema == {
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"description": "the first", "type": "integer"},
                "b": {"description": "the second", "type": "integer"},
            },
            "required": ["a"],
        },
    }
    shop = Toolbox().by_name["shop"].schema["parameters"]
    assert shop["properties"]["item"] == {"enum": ["tea", "milk"], "type": "string"}
    assert shop["required"] == ["item"]
    assert "state" not in shop["properties"]


def test_the_prompt_tells_the_tools_and_how_to_call_them():
    system, user = Toolbox().instructed("1 + 2?")
    assert (system["role"], user) == ("system", {"role": "user", "content": "1 + 2?"})
    assert '"name": "add"' in system["content"]
    assert "<tool_call>" in system["content"]
    assert "<function=NAME>" in Llama().tool_prompt


def test_a_call_is_answered_and_a_turn_without_one_is_the_last():
    answered = turn(call("add", '{"a": 2, "b": 3}'))
    assert answered.reply == [{"role": "tool", "content": "5", "name": "add"}]
    assert answered.end is None
    assert turn("it is 5").end == "done"
    assert turn("<tool_call>", Llama()).end == "done"


def test_several_calls_are_made_in_order_and_keep_their_memory():
    said = call("shop", '{"item": "tea"}') + " and " + call("shop", '{"item": "milk", "tags": ["cold"]}')
    assert results(said) == [("tea", False), ("tea and milk", False)]


def test_a_method_can_be_a_tool():
    assert results(call("next", '{"number": 4}'), WithMethod(step=3)) == [("7", False)]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>', "not JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": ', "the call is not closed with </tool_call>"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'a call is an object with "name" and "arguments"'),
        ('<tool_call>["add"]</tool_call>', "the JSON must be an object"),
        ('<tool_call>{"name": "add", "arguments": "a=1"}</tool_call>', '"arguments" must be an object'),
        ('<tool_call>{"name": "add", "name": "shop", "arguments": {}}</tool_call>', "a key stands twice"),
        (call("add", '{"a": NaN}'), "NaN is not JSON"),
        (call("add", "[" * 100_000), "nested too deeply"),
        (call("add", '{"a": "2"}'), "a: Input should be a valid integer"),
        (call("add", '{"a": 2.5}'), "a: Input should be a valid integer"),
        (call("add", '{"b": 2}'), "a: Field required"),
        (call("add", '{"a": 2, "c": 3}'), "c: Extra inputs are not permitted"),
        (call("add", '{"a": "\\ud800"}'), "Invalid"),
        (call("shop", '{"item": "gin"}'), "item: Input should be 'tea' or 'milk'"),
        (call("shop", '{"item": "tea", "state": {}}'), "state: Extra inputs are not permitted"),
        (call("rm", '{"path": "/"}'), "there is no tool 'rm'; the tools are add, shop, busy, wait"),
        (call("busy", '{"kind": "divide"}'), "ZeroDivisionError: division by zero"),
        (call("busy", '{"kind": "sys.exit"}'), "SystemExit: bye"),
        (call("busy", '{"kind": "surly"}'), "Surly: an error that cannot be shown"),
        (call("wait", '{"seconds": -1}'), "TimeoutError: of its own"),
    ],
)
def test_a_call_that_fails_is_answered_with_the_reason(said, answer):
    ((text, is_error),) = results(said)
    assert is_error
    assert text.startswith("error: ")
    assert answer in text
    assert len(text) < 3_000


@pytest.mark.parametrize("arguments", ['{"kind": "sleep"}', '{"kind": "loop"}'])
def test_a_tool_that_takes_too_long_is_ended_and_answered(arguments):
    started = time.monotonic()
    assert results(call("busy", arguments)) == [("error: busy took longer than 0.5 s", True)]
    assert results(call("wait", '{"seconds": 3600}')) == [("error: wait took longer than 0.5 s", True)]
    assert time.monotonic() - started < 3


def test_a_malformed_call_is_never_made():
    answered = turn('<tool_call>{"name": "shop", "arguments": {"item": "tea"</tool_call>')
    assert "basket" not in State.from_json(answered.state).data


def test_a_long_result_is_cut_visibly():
    ((text, is_error),) = results(call("busy", '{"kind": "big"}'))
    assert text == "x" * 10_000 + "… (10000 more characters)"
    assert not is_error


def test_a_result_is_written_as_json():
    assert results(call("wait", '{"seconds": 0}')) == [('{"waited": 0.0}', False)]


def test_the_function_format_is_read_too():
    said = 'so <function=add>{"a": 2}</function> then <function=add>{"a": </function>'
    answers = results(said, Llama())
    assert answers[0] == ("3", False)
    assert answers[1][1]
    assert turn(said, Llama()).reply[0]["role"] == "user"


def test_calls_beyond_the_most_of_a_turn_are_not_made_and_count_as_errors():
    said = '<function=add>{"a": 2}</function>' * 5
    assert results(said, Llama())[2:] == [("error: at most 2 calls a turn; 3 were not made", True)]
    assert metrics(said, Llama())["tool_error_count"] == 3.0


def test_tool_metrics_are_those_of_the_contract():
    said = call("add", '{"a": 1}') * 2 + call("shop", '{"item": "gin"}') + call("rm", "{}") + "<tool_call>{"
    assert metrics(said) == {
        "total_tool_calls": 5.0,
        "tool_success_count": 2.0,
        "tool_error_count": 3.0,
        "tool_success_rate": 0.4,
        "unique_tools_used": 2.0,
        "unknown_tool_calls": 1.0,
        "add_calls": 2.0,
        "shop_calls": 1.0,
        "busy_calls": 0.0,
        "wait_calls": 0.0,
    }


def test_without_a_call_the_success_rate_is_zero():
    found = metrics("no call")
    assert (found["tool_success_rate"], found["total_tool_calls"], found["add_calls"]) == (0.0, 0.0, 0.0)


def test_a_model_cannot_invent_names_of_metrics():
    assert set(metrics(call("__class__", "{}") + call("add_calls/x", "{}"))) == set(metrics("no call"))


def test_tool_metrics_come_with_the_reward_and_those_of_the_reward_win():
    import asyncio

    def scored(environment, said):
        state = turn(said, environment, turn(call("add", '{"a": 1}'), environment).state).state
        return asyncio.run(score_row_async(environment, Row("hi", "", state=state), "", None)).sample_metrics

    assert scored(Toolbox(), "done")["add_calls"] == 1.0
    assert scored(Toolbox(), "mine")["add_calls"] == 7.0
    assert scored(Quiet(), "done") == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Undescribed", "tool 'undescribed' needs a docstring"),
        ("Untyped", "tool 'untyped': parameter 'a' needs a type"),
        ("Starred", "must be a parameter with a name"),
        ("Reserved", "wanted a function with a name of its own, not 'unknown_tool'"),
        ("Twice", "wanted tools with different names"),
        ("Without", "wanted tools with different names, got ()"),
        ("Strange", "tool 'strange': its parameters cannot be described: name 'Nowhere' is not defined"),
    ],
)
def test_a_tool_that_cannot_be_described_is_refused(name, message):
    with pytest.raises(BadEnvironment) as caught:
        load(f"dialogs:{name}", {})
    assert message in str(caught.value)


def test_at_least_one_call_a_turn_must_be_allowed():
    class Silent(Toolbox):
        max_calls_per_turn = 0

    with pytest.raises(ValueError, match="max_calls_per_turn must be at least 1, got 0"):
        Silent().check_settings()


def test_a_tool_that_python_cannot_end_costs_its_conversation_only():
    with EnvironmentWorker("dialogs:Toolbox", {}, limit_s=2.0) as worker:
        said = [call("add", '{"a": 1}'), call("busy", '{"kind": "segfault"}'), call("add", '{"a": 2}')]
        turns = worker.turns([Spoken(START, text) for text in said])
    assert [one.reply[0]["content"] if one.reply else None for one in turns] == ["2", None, "3"]
    assert "its process was killed by SIGSEGV" in turns[1].error


@pytest.mark.parametrize(
    "text", ["", "no call", "</tool_call>", "<tool_calls>{}</tool_calls>", "<tool_call >{}</tool_call>"]
)
def test_what_only_looks_like_a_call_is_none(text):
    assert tool_calls(text, "xml") == []


def test_a_call_inside_an_unclosed_one_is_read():
    first, second = tool_calls('<tool_call>{"name": <tool_call>{"name": "add"}</tool_call>', "xml")
    assert first.problem == "the call is not closed with </tool_call>"
    assert second == ToolCall("add")


def test_reading_calls_takes_time_in_proportion_to_the_text():
    started = time.process_time()
    assert len(tool_calls("<tool_call>" * 20_000, "xml")) == 20_000
    assert len(tool_calls("<function=" * 20_000, "function")) == 0
    assert len(tool_calls("<function=a>" * 20_000, "function")) == 20_000
    assert time.process_time() - started < 2.0


def test_the_sync_path_takes_turns_too():
    from environments.turn import taken

    assert at_once(taken(Toolbox(), Spoken(START, call("add", '{"a": 1}')))).reply[0]["content"] == "2"
