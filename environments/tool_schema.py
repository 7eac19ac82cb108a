"""A typed Python function with a docstring, as a tool: its JSON schema, and a check of arguments by the same types."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from environments.checks import BadEnvironment, shown

STATE = "state"
"""A parameter of this name gets the conversation's `State`, and is not the policy's to fill in."""

NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
RESERVED = frozenset({"total_tool", "unknown_tool"})
"""`<tool>_calls` would be a metric of all tools."""

PARAMETER_LINE = re.compile(r"\s*(\w+)\s*(?:\([^)]*\))?:\s+(\S.*)")


class BadArguments(ValueError):
    """Arguments that a tool does not take; the text is for the policy."""


class Tool:
    """One function that a policy may call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", "")
        if not NAME.fullmatch(self.name) or self.name in RESERVED:
            raise BadEnvironment(f"tool {shown(function)}: wanted a function with a name of its own, not {self.name!r}")
        self.description = (inspect.getdoc(function) or "").strip()
        if not self.description:
            raise BadEnvironment(f"tool {self.name!r} needs a docstring: it is all that the policy is told about it")
        self.takes_state = STATE in inspect.signature(function).parameters
        self._arguments = _adapter(self.name, function, self.description)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as models are told of it: name, description, and the JSON schema of its parameters."""
        described = self._arguments.json_schema()
        properties = {
            name: {key: value for key, value in of.items() if key != "title"}
            for name, of in described.get("properties", {}).items()
        }
        parameters = {"type": "object", "properties": properties, "required": described.get("required", [])}
        parameters |= {"$defs": described["$defs"]} if "$defs" in described else {}
        return {"name": self.name, "description": self.description.split("\n\n")[0], "parameters": parameters}

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call, checked strictly: a text is not a number. Raises BadArguments."""
        try:
            return dict(self._arguments.validate_json(json.dumps(given)))
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False)]
            raise BadArguments("; ".join(wrong)[:500]) from None
        except RecursionError:
            raise BadArguments("the arguments are nested too deeply") from None


def _adapter(name: str, function: Callable[..., Any], docstring: str) -> TypeAdapter[Any]:
    try:
        hints = get_type_hints(function, include_extras=True)
        lines = [match for line in docstring.splitlines() if (match := PARAMETER_LINE.fullmatch(line))]
        said = {match[1]: match[2] for match in lines}
        fields = {
            parameter.name: _field(name, parameter, hints, said.get(parameter.name))
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != STATE
        }
        make: Any = TypedDict
        kind = make(name, fields)
        kind.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
        return TypeAdapter(kind)
    except (NameError, TypeError, PydanticUserError) as error:
        raise BadEnvironment(f"tool {name!r}: its parameters cannot be described: {error}") from None


def _field(tool: str, parameter: inspect.Parameter, hints: Mapping[str, Any], description: str | None) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise BadEnvironment(f"tool {tool!r}: {parameter} must be a parameter with a name")
    if parameter.name not in hints:
        raise BadEnvironment(f"tool {tool!r}: parameter {parameter.name!r} needs a type")
    annotated: Any = Annotated  # a type that is made at run time: to a type checker it is none
    kind = annotated[hints[parameter.name], Field(description=description)]
    return kind if parameter.default is parameter.empty else NotRequired[kind]
