"""One turn of a conversation: the policy has spoken, the environment answers. A failure becomes data."""

import asyncio
import copy
import inspect
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.base import Message, Sample
from environments.checks import clean, error_text, name_of, raised, shown
from environments.multi_turn import MultiTurnEnvironment, State

ROLES = frozenset({"user", "tool", "system"})
MAX_REPLY = 1_000_000
"""Characters of one answer of an environment: beyond any context, and dear to tokenise."""


@dataclass(frozen=True)
class Spoken:
    """A turn of the policy. `state` is the JSON of a `State` before it."""

    state: str
    completion: str


@dataclass(frozen=True)
class Turn:
    """What the environment did with a turn of the policy. Without a state, `error` says why.

    state: JSON after the turn, the reply included. end: why nothing is sampled after it, `done` or `max_turns`; None
    where the conversation goes on. Times are time.monotonic() seconds.
    """

    state: str | None = None
    reply: list[Message] = field(default_factory=list)
    end: str | None = None
    error: str | None = None
    start_s: float | None = None
    end_s: float | None = None


async def taken(environment: MultiTurnEnvironment, spoken: Spoken) -> Turn:
    """The environment's answer; raises what its code raises."""
    start_s = time.monotonic()
    state = State.from_json(spoken.state)
    reply, is_done = await advance(environment, state, spoken.completion)
    is_last = len(state.completions) >= environment.max_turns
    end = "done" if is_done else "max_turns" if is_last else None
    return Turn(state.to_json(), reply, end, start_s=start_s, end_s=time.monotonic())


async def replayed(environment: MultiTurnEnvironment, sample: Sample, completions: Sequence[str]) -> State:
    """The state after these turns of the policy, for an environment that answers the same to the same."""
    state = State(sample)
    for completion in completions:
        _, is_done = await advance(environment, state, completion)
        state = State.from_json(state.to_json())  # as between the turns of a run, so that what fails there fails here
        if is_done:
            break
    return state


async def advance(environment: MultiTurnEnvironment, state: State, completion: str) -> tuple[list[Message], bool]:
    """Adds the policy's turn and the environment's reply to the state; returns the reply, and whether it is over."""
    said = [*state.turns, {"role": "assistant", "content": completion}]
    state.turns = copy.deepcopy(said)
    if environment.is_done(state):
        return [], True
    answer = environment.env_response(copy.deepcopy(state.messages), state)
    reply = checked_reply(await answer if inspect.isawaitable(answer) else answer)
    state.turns = [*said, *(reply or [])]
    is_done = reply is None or bool(environment.is_done(state))
    state.turns = [*said, *(reply or [])]
    return reply or [], is_done


def checked_reply(answer: Any) -> list[Message] | None:
    """What env_response() returned, as messages."""
    if answer is None:
        return None
    messages = [{"role": "user", "content": answer}] if isinstance(answer, str) else answer
    if not isinstance(messages, list) or not messages:
        raise TypeError(f"env_response() must return a text, a list of messages or None, got {shown(answer)}")
    checked = [_message(message) for message in messages]
    length = sum(len(message["content"]) for message in checked)
    if length > MAX_REPLY:
        raise ValueError(f"env_response() returned {length} characters, at most {MAX_REPLY} are allowed; cut the text")
    return checked


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise TypeError(f"env_response(): a message has 'role' and 'content' texts, got {shown(message)}")
    if message.get("role") not in ROLES:
        raise ValueError(f"env_response(): a role is {', '.join(sorted(ROLES))}, got {shown(message.get('role'))}")
    if not set(message) <= {"role", "content", "name", "is_error"}:
        raise TypeError(f"env_response(): a message has role, content, name and is_error, got {shown(set(message))}")
    name = message.get("name")
    if not isinstance(name, str | None) or not isinstance(message.get("is_error", False), bool):
        raise TypeError(f"env_response(): 'name' is a text and 'is_error' true or false, got {shown(message)}")
    extras = ({"name": clean(name)} if name is not None else {}) | (
        {"is_error": True} if message.get("is_error") else {}
    )
    return {"role": message["role"], "content": clean(message["content"]), **extras}


def turn_now(environment: MultiTurnEnvironment, spoken: Spoken) -> Turn:
    """One turn in this thread, of an environment that waits for nothing."""
    start_s = time.monotonic()
    try:
        return at_once(taken(environment, spoken))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - environment code may raise anything, SystemExit too
        return _caught(environment, error, start_s)


async def turn_async(environment: MultiTurnEnvironment, spoken: Spoken, limit_s: float | None) -> Turn:
    """One turn beside others in this event loop; the limit counts from here."""
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await taken(environment, spoken)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - environment code may raise anything, SystemExit too
        if limit.expired():
            return failed_turn(name_of(environment), f"env_response() took longer than {limit_s:g} s", start_s)
        return _caught(environment, error, start_s)


def failed_turn(name: str, reason: str, start_s: float | None = None, end_s: float | None = None) -> Turn:
    end_s = time.monotonic() if end_s is None else end_s
    return Turn(error=error_text(f"environment {name!r}: {reason}"), start_s=start_s, end_s=end_s)


def _caught(environment: MultiTurnEnvironment, error: BaseException, start_s: float) -> Turn:
    return failed_turn(name_of(environment), f"env_response() failed: {raised(error)}", start_s)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for, without an event loop."""
    try:
        work.send(None)
    except StopIteration as finished:
        return finished.value
    work.close()
    raise RuntimeError("it waits for something: declare it `async def`")
