"""Tool calls in what a policy wrote. The text is a model's: nothing in it is trusted, and nothing is guessed.

xml        <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>     Qwen, Hermes
function   <function=add>{"a": 1, "b": 2}</function>                                 Llama 3.1
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["xml", "function"]


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it. Where it cannot be read, `problem` says why, and it must not be made."""

    name: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


XML = re.compile(r"<tool_call>(?P<body>.*?)(?P<end></tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
FUNCTION = re.compile(
    r"<function=(?P<name>[^<>]{0,100})>(?P<body>.*?)(?P<end></function>|(?=<function=)|\Z)", re.DOTALL
)


def tool_calls(text: str, form: Format) -> list[ToolCall]:
    """Every call in the text, in order. One that was begun and not closed is a call with a problem."""
    return list(READERS[form](text))


def _xml(text: str) -> Iterator[ToolCall]:
    for found in XML.finditer(text):
        if not found["end"]:
            yield ToolCall(None, problem="the call is not closed with </tool_call>")
            continue
        call = _object(found["body"])
        if isinstance(call, str):
            yield ToolCall(None, problem=call)
        elif not isinstance(call.get("name"), str) or not set(call) <= {"name", "arguments"}:
            yield ToolCall(None, problem='a call is an object with "name" and "arguments"')
        else:
            yield _call(call["name"], call.get("arguments", {}))


def _function(text: str) -> Iterator[ToolCall]:
    for found in FUNCTION.finditer(text):
        name = found["name"].strip()
        if not found["end"]:
            yield ToolCall(name, problem="the call is not closed with </function>")
            continue
        arguments = _object(found["body"])
        yield ToolCall(name, problem=arguments) if isinstance(arguments, str) else _call(name, arguments)


def _call(name: str, arguments: Any) -> ToolCall:
    if not isinstance(arguments, dict):
        return ToolCall(name, problem='"arguments" must be an object')
    return ToolCall(name, arguments)


def _object(text: str) -> dict[str, Any] | str:
    """The JSON object in a text, or what is wrong with it."""
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        return "the JSON is nested too deeply"
    except ValueError as error:
        return f"not JSON: {error}"
    return value if isinstance(value, dict) else "the JSON must be an object"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


READERS: dict[Format, Callable[[str], Iterator[ToolCall]]] = {"xml": _xml, "function": _function}
EXAMPLES: dict[Format, str] = {
    "xml": '<tool_call>{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}</tool_call>',
    "function": '<function=NAME>{"ARGUMENT": VALUE}</function>',
}
