"""YAML and `key=value` overrides in, YAML out.

The dialect is YAML 1.2's plain data: one document, no duplicate keys, and no tags, anchors, aliases or
directives (they are refused while scanning, before anything is constructed).
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.tokens import (
    AliasToken,
    AnchorToken,
    BlockEndToken,
    BlockMappingStartToken,
    BlockSequenceStartToken,
    DirectiveToken,
    FlowMappingEndToken,
    FlowMappingStartToken,
    FlowSequenceEndToken,
    FlowSequenceStartToken,
    TagToken,
)

from app.config_errors import ConfigError, Problem, shown

MAX_BYTES = 1_000_000
MAX_DEPTH = 30
LONGEST_KEY = 200  # characters of an override
REFUSED_TOKENS = {
    TagToken: "a tag (!...)",
    AnchorToken: "an anchor (&...)",
    AliasToken: "an alias (*...)",
    DirectiveToken: "a directive (%...)",
}
OPENING = (BlockMappingStartToken, BlockSequenceStartToken, FlowMappingStartToken, FlowSequenceStartToken)
CLOSING = (BlockEndToken, FlowMappingEndToken, FlowSequenceEndToken)


@dataclass(frozen=True)
class Document:
    """Parsed data, and for each dotted key the text that says where it was written."""

    data: dict[str, Any]
    origins: dict[str, str]


def read(path: Path) -> Document:
    """The mapping in a YAML file; raises ConfigError."""
    source = str(path)
    try:
        raw = path.read_bytes()
        text = raw.decode()
    except FileNotFoundError:
        raise ConfigError(source, [Problem("", f"no such file{_similar_files(path)}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(source, [Problem("", f"not UTF-8 text (byte {error.start}); save it as UTF-8")]) from None
    except OSError as error:
        raise ConfigError(source, [Problem("", f"cannot be read: {error.strerror}")]) from None
    try:
        data, lines = parse(text)
    except ValueError as error:
        raise ConfigError(source, [Problem("", str(error))]) from None
    if not isinstance(data, dict):
        raise ConfigError(
            source,
            [Problem("", f"got {shown(data)}, wanted a mapping of keys to values, as in 'steps: 100'")],
        )
    if "applications" in data:
        raise ConfigError(
            source, [Problem("", "this is a Ray Serve file, not a run's config; use it with `serve deploy`")]
        )
    return Document(data, {key: f"line {line}" for key, line in lines.items()})


def parse(text: str) -> tuple[Any, dict[str, int]]:
    """Plain data of one document, and the line of each dotted key; raises ValueError with line and reason."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"got {len(text)} characters of YAML, wanted at most {MAX_BYTES}")
    try:
        _check_tokens(text)
        return _yaml().load(text), _lines(_yaml().compose(text))
    except DuplicateKeyError as error:
        raise ValueError(_marked(error).split(" with value")[0] + "; keep one of the two") from None
    except MarkedYAMLError as error:
        raise ValueError(f"not valid YAML: {_marked(error)}") from None
    except YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _check_tokens(text: str) -> None:
    depth = 0
    for token in _yaml().scan(StringIO(text)):
        line = token.start_mark.line + 1
        if type(token) in REFUSED_TOKENS:
            raise ValueError(f"line {line}: {REFUSED_TOKENS[type(token)]} is refused; write the plain value")
        depth += isinstance(token, OPENING) - isinstance(token, CLOSING)
        if depth > MAX_DEPTH:
            raise ValueError(f"line {line}: nested more than {MAX_DEPTH} levels deep")


def _marked(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return place + (error.problem or error.context or "cannot be read")


def _lines(node: Node | None, prefix: str = "") -> dict[str, int]:
    lines: dict[str, int] = {}
    for key, value, line in _children(node):
        lines[prefix + key] = line
        lines |= _lines(value, f"{prefix}{key}.")
    return lines


def _children(node: Node | None) -> list[tuple[str, Node, int]]:
    if isinstance(node, MappingNode):
        return [(key.value, value, key.start_mark.line + 1) for key, value in node.value if isinstance(key, ScalarNode)]
    if isinstance(node, SequenceNode):
        return [(str(i), value, value.start_mark.line + 1) for i, value in enumerate(node.value)]
    return []


def _similar_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    files = {file.stem: file for file in sorted(path.parent.iterdir()) if file.suffix in (".yaml", ".yml")}
    near = difflib.get_close_matches(path.stem, files, n=1)
    if near:
        return f"; did you mean '{files[near[0]]}'?"
    return f"; {path.parent} has {', '.join(file.name for file in [*files.values()][:20])}" if files else ""


def write(data: Mapping[str, Any]) -> str:
    """Block-style YAML with the keys in the order given."""
    text = _written(data, readable=True)
    # Unescaped, U+0085 is a line break to the reader: it comes back as a space.
    return text if "\x85" not in text else _written(data, readable=False)


def _written(data: Mapping[str, Any], readable: bool) -> str:
    yaml = _yaml()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.allow_unicode = readable
    yaml.width = 1_000_000
    out = StringIO()
    yaml.dump(dict(data), out)
    return out.getvalue()


def apply_overrides(document: Document, overrides: Sequence[str], source: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The document with each `dotted.key=yaml value` set; list items are addressed by number."""
    data, origins, problems = _copied(document.data), dict(document.origins), []
    seen: list[str] = []
    for text in overrides:
        try:
            key, value = _split(text)
            _check_new(key, seen)
            _set(data, key.split("."), value)
        except ValueError as error:
            problems.append(Problem("", f"override {shown(text)}: {error}"))
            continue
        seen.append(key)
        origins[key] = "override"
    if problems:
        raise ConfigError(source, problems)
    return data, origins


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _split(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not value.strip() or not all(key.split(".")):
        raise ValueError("wanted key=value, as in learning_rate=1e-6, engine.kv_cache_mb=64 or wandb=null")
    if len(key) > LONGEST_KEY:
        raise ValueError(f"the key has {len(key)} characters, at most {LONGEST_KEY} are read")
    return key, parse(value)[0]


def _check_new(key: str, seen: Sequence[str]) -> None:
    for other in seen:
        if key == other:
            raise ValueError("the key is given twice; keep one")
        if key.startswith(f"{other}.") or other.startswith(f"{key}."):
            raise ValueError(f"overlaps with the override of {other}; give one of them")


def _set(data: dict[str, Any], path: list[str], value: Any) -> None:
    here: Any = data
    for i, part in enumerate(path):
        index = _index(here, part, ".".join(path[:i]))
        if i == len(path) - 1:
            here[index] = value
        else:
            if isinstance(here, dict) and here.get(index) is None:
                here[index] = {}
            here = here[index]


def _index(here: Any, part: str, name: str) -> str | int:
    if isinstance(here, dict):
        return part
    if not isinstance(here, list):
        raise ValueError(f"{name} = {shown(here)} has no keys below it")
    if not (part.isascii() and part.isdigit() and int(part) < len(here)):
        raise ValueError(f"{name} is a list of {len(here)}; wanted a number from 0 to {len(here) - 1}, got '{part}'")
    return int(part)
