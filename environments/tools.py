"""Environments in which the policy calls tools: typed Python functions with docstrings.

    def add(a: int, b: int) -> int:
        "Add two whole numbers."
        return a + b

    class Adding(ToolEnvironment):
        tools = (add,)

        def samples(self, split):
            return [Sample(self.instructed("What is 17 + 25?"), 42)]

        def compute_reward(self, state):
            return RewardResult(float(str(state.sample.answer) in state.completions[-1]))

A turn without a call ends the conversation. A call that fails, in whatever way, is answered with an error that the
policy can read; it ends neither the run nor the conversation. A tool that takes a parameter `state` gets the
conversation's `State` and may keep JSON values in `state.data`. A method can be a tool: set `tools` in `__init__`.
"""

import asyncio
import contextlib
import inspect
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import FrameType
from typing import Any

from environments.base import Message, Prompt
from environments.checks import raised
from environments.multi_turn import MultiTurnEnvironment, State
from environments.tool_calls import EXAMPLES, Format, ToolCall, tool_calls
from environments.tool_schema import STATE, BadArguments, Tool

MAX_RESULT = 10_000
"""Characters of one result that reach the policy; the rest is cut, visibly."""

CALLS = "tool_calls"
"""Where in `state.data` the calls are counted: a list of {"tool", "is_unknown", "is_ok"}."""


class TookTooLong(BaseException):
    """A tool ran into its limit. No Exception, so that a tool which catches those is ended, too."""


class ToolEnvironment(MultiTurnEnvironment):
    """A conversation in which the environment answers with the results of the policy's tool calls.

    tool_timeout_s limits each call. A tool that Python cannot interrupt (a busy C extension) runs into the entry's
    `turn_timeout_s`, which kills the process and makes the sample an error.
    """

    tools: Sequence[Callable[..., Any]] = ()
    tool_format: Format = "xml"
    tool_timeout_s: float = 2.0
    max_calls_per_turn: int = 8
    reply_roles: Sequence[str] = ("tool",)
    """The first is the role of a result. A chat template without tools may know only `user`."""

    def check_settings(self) -> None:
        super().check_settings()
        if not 0 < self.tool_timeout_s <= 3600:
            raise ValueError(f"tool_timeout_s must be above 0 and at most 3600 s, got {self.tool_timeout_s}")
        if self.max_calls_per_turn < 1:
            raise ValueError(f"max_calls_per_turn must be at least 1, got {self.max_calls_per_turn}")
        if self.tool_format not in EXAMPLES:
            raise ValueError(f"tool_format must be one of {', '.join(EXAMPLES)}, got {self.tool_format!r}")
        if not self.by_name or len(self.by_name) < len(self.tools):
            raise ValueError(f"wanted tools with different names, got {self.tools!r}")

    @cached_property
    def by_name(self) -> Mapping[str, Tool]:
        """The tools, described. Raises BadEnvironment for one that cannot be."""
        return {tool.name: tool for tool in map(Tool, self.tools)}

    @property
    def tool_prompt(self) -> str:
        """What a policy must be told about the tools: their schemas, and how to call one."""
        schemas = "\n".join(json.dumps(tool.schema) for tool in self.by_name.values())
        return (
            f"You may call these tools:\n{schemas}\n\nTo call one, write\n{EXAMPLES[self.tool_format]}\n"
            "and end your turn: the result is the next message. A turn without a call is your final answer."
        )

    def instructed(self, question: str) -> Prompt:
        """The prompt of a sample: the tools in a system message, then the question."""
        return [{"role": "system", "content": self.tool_prompt}, {"role": "user", "content": question}]

    def is_done(self, state: State) -> bool:
        """A turn without a call is the last."""
        last = state.turns[-1]
        return last["role"] == "assistant" and not tool_calls(last["content"], self.tool_format)

    async def env_response(self, messages: list[Message], state: State) -> list[Message]:
        """Makes the calls of the policy's turn, one after the other, and answers with their results."""
        calls = tool_calls(messages[-1]["content"], self.tool_format)
        made, beyond = calls[: self.max_calls_per_turn], calls[self.max_calls_per_turn :]
        results = [await self._result(call, state) for call in made]
        if beyond:
            text = f"error: at most {self.max_calls_per_turn} calls a turn; {len(beyond)} were not made"
            results.append({"role": self.reply_roles[0], "content": text, "is_error": True})
            state.data[CALLS] += [self._record(call, is_ok=False) for call in beyond]
        return results

    def get_tool_metrics(self, state: State) -> dict[str, float]:
        """How the tools were used; calls of names that are no tools count under one name, whatever the policy wrote."""
        calls = state.data.get(CALLS, [])
        num_right = sum(call["is_ok"] for call in calls)
        of_tool = {name: float(sum(call["tool"] == name for call in calls)) for name in self.by_name}
        return {
            "total_tool_calls": float(len(calls)),
            "tool_success_count": float(num_right),
            "tool_error_count": float(len(calls) - num_right),
            "tool_success_rate": num_right / len(calls) if calls else 0.0,
            "unique_tools_used": float(sum(count > 0 for count in of_tool.values())),
            "unknown_tool_calls": float(sum(call["is_unknown"] for call in calls)),
            **{f"{name}_calls": count for name, count in of_tool.items()},
        }

    def conversation_metrics(self, state: State) -> Mapping[str, float | None]:
        """The tool metrics come with every reward; return {} to leave them out."""
        return self.get_tool_metrics(state)

    async def _result(self, call: ToolCall, state: State) -> Message:
        """The message that answers one call. The one place where a tool may fail: what it raises is an answer."""
        tool = self.by_name.get(call.name or "")
        try:
            content, is_ok = _text(await self._made(call, tool, state)), True
        except BadArguments as error:
            content, is_ok = f"error: {error}", False
        except TookTooLong:
            content, is_ok = f"error: {call.name} took longer than {self.tool_timeout_s:g} s", False
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything
            content, is_ok = f"error: {raised(error)}", False
        state.data.setdefault(CALLS, []).append(self._record(call, is_ok))
        named = {} if tool is None else {"name": tool.name}
        return {"role": self.reply_roles[0], "content": _cut(content), "is_error": not is_ok, **named}

    async def _made(self, call: ToolCall, tool: Tool | None, state: State) -> Any:
        if call.problem is not None:
            raise BadArguments(call.problem)
        if tool is None:
            raise BadArguments(f"there is no tool {call.name!r:.100}; the tools are {', '.join(self.by_name)}")
        arguments = tool.arguments(call.arguments) | ({STATE: state} if tool.takes_state else {})
        if inspect.iscoroutinefunction(tool.function):
            return await _waited(tool.function(**arguments), self.tool_timeout_s)
        with _limited(self.tool_timeout_s):
            return tool.function(**arguments)

    def _record(self, call: ToolCall, is_ok: bool) -> dict[str, Any]:
        is_known = call.name in self.by_name
        is_unknown = call.name is not None and not is_known
        return {"tool": call.name if is_known else None, "is_unknown": is_unknown, "is_ok": is_ok}


def _text(result: Any) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_RESULT else f"{text[:MAX_RESULT]}… ({len(text) - MAX_RESULT} more characters)"


async def _waited(work: Awaitable[Any], limit_s: float) -> Any:
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise TookTooLong from None
        raise


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raises TookTooLong inside the block after so many seconds; only the main thread can be interrupted so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
