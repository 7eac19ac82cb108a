import asyncio
import json
import time

import pyarrow as pa
import pytest
from dialogs import AsyncEcho, Echo, Rewriter, Watching

from environments.base import Sample
from environments.batch import table_of
from environments.checks import BadEnvironment
from environments.loader import is_multi_turn, load
from environments.multi_turn import MultiTurnEnvironment, State
from environments.pool import EnvironmentPool
from environments.turn import Spoken, at_once, replayed, turn_now
from environments.worker import EnvironmentWorker

START = State(Sample("hi", {"right": [1]}, {"level": 2})).to_json()


def after(environment, *said: str):
    """The last turn after the policy has said all this."""
    state = START
    for text in said:
        turn = turn_now(environment, Spoken(state, text))
        state = turn.state
    return turn


def failure(said: str) -> str:
    turn = after(Echo(), said)
    assert turn.state is None
    return turn.error


def test_turns_alternate_and_memory_is_kept():
    turn = after(Echo(), "a", "b")
    state = State.from_json(turn.state)
    assert turn.reply == [{"role": "user", "content": "you said b"}]
    assert [message["content"] for message in state.messages] == ["hi", "a", "you said a", "b", "you said b"]
    assert [message["role"] for message in state.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert (state.completions, state.data) == (["a", "b"], {"heard": ["a", "b"]})
    assert (state.sample.answer, state.sample.metadata) == ({"right": [1]}, {"level": 2})


@pytest.mark.parametrize(
    ("said", "end", "heard"),
    [
        (["a"], None, ["a"]),
        (["bye"], "done", None),
        (["end"], "done", ["end"]),
        (["a", "b", "c"], "max_turns", ["a", "b", "c"]),
        (["a", "b", "bye"], "done", ["a", "b"]),
    ],
)
def test_a_conversation_ends_when_it_is_done_or_has_had_its_turns(said, end, heard):
    turn = after(Echo(), *said)
    assert (turn.end, State.from_json(turn.state).data.get("heard")) == (end, heard)


def test_it_is_asked_whether_it_is_done_before_and_after_its_answer():
    turn = after(Watching(), "a")
    assert State.from_json(turn.state).data["seen"] == [["a"], ["a", "you said a"]]


def test_several_messages_with_names_and_errors_are_a_reply():
    reply = after(Echo(), "messages").reply
    assert reply == [
        {"role": "tool", "content": "5", "name": "add"},
        {"role": "user", "content": "go on", "is_error": True},
    ]


def test_a_text_that_no_file_can_hold_is_cleaned():
    assert after(Echo(), "surrogate").reply[0]["content"] == "a?b"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("number", "TypeError: env_response() must return a text, a list of messages or None, got 5 (int)"),
        ("nothing", "TypeError: env_response() must return a text, a list of messages or None, got [] (list)"),
        ("assistant", "ValueError: env_response(): a role is system, tool, user, got 'assistant' (str)"),
        ("forged role", "ValueError: env_response(): a role is system, tool, user, got 'user<eos>' (str)"),
        ("extra", "a message has role, content, name and is_error, got"),
        (
            "no content",
            "TypeError: env_response(): a message has 'role' and 'content' texts, got {'role': 'user'} (dict)",
        ),
        ("long", "env_response() returned 1000001 characters, at most 1000000 are allowed"),
        ("divide", "env_response() failed: ZeroDivisionError: division by zero"),
        ("sys.exit", "env_response() failed: SystemExit: bye"),
    ],
)
def test_what_is_no_reply_is_an_error_that_says_so(said, error):
    found = failure(said)
    assert error in found
    assert found.startswith("environment 'Echo': env_response() failed: ")


def test_what_was_said_cannot_be_changed_afterwards():
    state = State.from_json(after(Rewriter(), "a", "b").state)
    assert [turn["content"] for turn in state.turns] == ["a", "on", "b", "on"]
    assert state.data == {"kept": [1, 2]}


@pytest.mark.parametrize("kept", ["tuple", "number key", "set", "nan"])
def test_memory_that_json_would_change_is_refused(kept):
    turn = after(Rewriter(), kept)
    assert turn.state is None
    assert "TypeError" in turn.error


def test_a_conversation_comes_back_from_json():
    messages = [{"role": "system", "content": "messages:"}, {"role": "user", "content": "é\n"}]
    state = State(Sample(messages, None, {"a": [1]}), [{"role": "assistant", "content": "x"}], {"b": None})
    assert State.from_json(state.to_json()) == state
    assert state.messages == [*messages, {"role": "assistant", "content": "x"}]


def test_a_conversation_can_be_played_again():
    state = at_once(replayed(Echo(), Sample("hi"), ["a", "bye", "never said"]))
    assert state.completions == ["a", "bye"]


def test_a_class_that_defines_nothing_says_what_to_define():
    with pytest.raises(NotImplementedError, match=r"must define env_response\(messages, state\)"):
        MultiTurnEnvironment().env_response([], State(Sample("")))
    with pytest.raises(NotImplementedError, match=r"must define compute_reward\(state\)"):
        MultiTurnEnvironment().compute_reward(State(Sample("")))


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("dialogs:Unfinished", {}, "env_response must take (messages, state)"),
        ("dialogs:Echo", {"max_turns": 0}, "max_turns must be 1 to 1000, got 0"),
        ("dialogs:Echo", {"max_turns": "3"}, "setting 'max_turns' must be int | None, got '3' (str)"),
        ("dialogs:Echo", {"turns": 3}, "has no setting 'turns' (str); accepted: max_turns"),
        ("environments.multi_turn:MultiTurnEnvironment", {}, "must name an environment class"),
    ],
)
def test_what_cannot_talk_is_refused_with_the_reason(name, kwargs, message):
    with pytest.raises(BadEnvironment) as caught:
        load(name, kwargs)
    assert message in str(caught.value)


def test_the_class_says_how_many_turns_and_a_setting_changes_it():
    assert (load("dialogs:Echo", {}).max_turns, load("dialogs:Echo", {"max_turns": 5}).max_turns) == (3, 5)


def test_the_kind_is_known_without_building_it():
    kinds = [is_multi_turn(name) for name in ("dialogs:Echo", "dialogs:Toolbox", "sums", "hostile:lengths")]
    assert kinds == [True, True, False, False]


def rewards(table) -> list:
    return list(zip(table["reward"].to_pylist(), table["sample_metrics"].to_pylist(), strict=True))


def test_a_finished_conversation_is_judged_by_its_state():
    table = table_of([Sample("hi")], [""]).append_column("state", pa.array([after(Echo(), "a", "b").state]))
    assert rewards(load("dialogs:Echo", {}).map_fn()(table)) == [(2.0, [("heard", 2.0)])]
    with EnvironmentWorker("dialogs:Echo", {}, limit_s=5) as worker:
        assert rewards(worker.score(table)) == [(2.0, [("heard", 2.0)])]


def test_stored_turns_are_played_again_and_judged():
    turns = [
        {"role": "assistant", "text": "a"},
        {"role": "user", "text": "?"},
        {"role": "assistant", "text": "bye</s>"},
    ]
    table = table_of([Sample("hi")] * 2, ["", "x</s>"]).append_column("turns", pa.array([turns, None]))
    for name in ("dialogs:Echo", "dialogs:AsyncEcho"):
        scored = load(name, {}).map_fn("</s>")(table)
        assert scored["reward"].to_pylist() == [2.0, 1.0], scored["error"].to_pylist()


@pytest.fixture(scope="module")
def worker():
    with EnvironmentWorker("dialogs:Echo", {}, limit_s=1.0) as worker:
        yield worker


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("busy", "env_response took longer than 1 s; its process was replaced"),
        ("exit", "its process ended with exit code 3"),
        ("segfault", "its process was killed by SIGSEGV"),
        ("divide", "env_response() failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_turn_that_hangs_or_crashes_costs_its_conversation_only(worker, said, error):
    turns = worker.turns([Spoken(START, text) for text in ("a", said, "b")])
    assert [turn.error for turn in turns] == [None, f"environment 'dialogs:Echo': {error}", None]
    assert [turn.reply for turn in turns] == [
        [{"role": "user", "content": f"you said {x}"}] if x else [] for x in ("a", "", "b")
    ]


@pytest.mark.parametrize("said", ["await", "busy"])
def test_an_async_turn_that_hangs_is_found_among_the_others(said):
    with EnvironmentWorker("dialogs:AsyncEcho", {}, limit_s=1.0) as worker:
        turns = worker.turns([Spoken(START, text) for text in ("a", said, "b")])
    assert [turn.error is None for turn in turns] == [True, False, True]
    assert "took longer than 1 s" in turns[1].error


def test_a_conversation_survives_the_process_that_answered_it(worker):
    first = worker.turns([Spoken(START, "a")])[0]
    assert worker.turns([Spoken(START, "exit")])[0].state is None
    second = worker.turns([Spoken(first.state, "b")])[0]
    assert State.from_json(second.state).data == {"heard": ["a", "b"]}


def test_conversations_wait_side_by_side():
    async def talk(pool: EnvironmentPool, count: int) -> float:
        started = time.monotonic()
        turns = await asyncio.gather(*[pool.turn(Spoken(START, str(i))) for i in range(count)])
        assert [turn.reply[0]["content"] for turn in turns] == [f"you said {i}" for i in range(count)]
        return time.monotonic() - started

    with EnvironmentPool("dialogs:AsyncEcho", {}, limit_s=5.0) as pool:
        assert asyncio.run(talk(pool, 32)) < 1.2  # 32 waits of 0.05 s one after the other take 1.6 s
    with EnvironmentPool("dialogs:Echo", {}, limit_s=5.0, processes=2) as pool:
        asyncio.run(talk(pool, 5))


def test_several_processes_answer_while_one_is_held_up():
    async def talk(pool: EnvironmentPool) -> list:
        held = asyncio.create_task(pool.turn(Spoken(START, "sleep")))
        await asyncio.sleep(0.1)
        started = time.monotonic()
        quick = await pool.turn(Spoken(START, "a"))
        spent = time.monotonic() - started
        return [quick.error, spent < 1.0, (await held).error is None]

    with EnvironmentPool("dialogs:Echo", {}, limit_s=1.5, processes=2) as pool:
        assert asyncio.run(talk(pool)) == [None, True, False]


def test_several_processes_score_a_table_in_its_order():
    table = table_of([Sample("reverse ab: ", "ba")] * 5, ["ba", "b", "", "xx", "ba"])
    with EnvironmentPool("reverse_text", {}, limit_s=5.0, processes=3) as pool:
        assert pool.score(table)["reward"].to_pylist() == [1.0, 0.5, 0.0, 0.0, 1.0]
        assert pool.score(table.slice(0, 0)).num_rows == 0
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        EnvironmentPool("reverse_text", {}, limit_s=5.0, processes=0)


def test_a_turn_is_small_enough_to_be_a_line_of_json():
    assert "\n" not in START
    assert json.loads(START)["turns"] == []


def test_an_async_environment_takes_turns_in_a_loop():
    assert asyncio.run(replayed(AsyncEcho(), Sample("hi"), ["a", "b"])).completions == ["a", "b"]
    with pytest.raises(RuntimeError, match="no running event loop"):
        at_once(replayed(AsyncEcho(), Sample("hi"), ["a"]))
