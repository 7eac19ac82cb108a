"""Writes docs/configuration.md from the configuration itself: `python -m app.config_page > docs/configuration.md`."""

from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.config import Config
from app.config_errors import section_in

HEAD = """# Configuration

A run is described by one YAML 1.2 file. Three layers, the later one wins: the defaults below, the file, and
`key=value` arguments (`steps=20`, `engine.kv_cache_mb=256`, `environments.0.weight=2`). Unknown keys, keys that stand
twice, wrong types and settings that cannot go together are refused before anything starts, with the key and what to
do. The resolved configuration is kept in the run directory as `config.yaml`.

"By rule" means: when left out, the value follows from others, as the description says.

This page is written by `make docs` from the configuration's own definitions.
"""


def page() -> str:
    return "\n".join([HEAD, *_section("Keys of a run", Config)])


def _section(title: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| key | type | default | what it is |"
    yield "|---|---|---|---|"
    nested: dict[str, type[BaseModel]] = {}
    for name, info in model.model_fields.items():
        inner = section_in(info.annotation)
        if inner is not None:
            nested[name] = inner
        yield f"| `{name}` | {_type(info.annotation)} | {_default(info)} | {_cell(info.description or '')} |"
    yield ""
    for name, inner in nested.items():
        yield from _section(f"Keys of `{name}`", inner)


def _type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{str(part).lower() if isinstance(part, bool) else part}`" for part in parts)
    if origin is list:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return "mapping"
    if parts and (origin is Union or type(None) in parts):
        return " or ".join("null" if part is type(None) else _type(part) for part in parts)
    if parts:  # Annotated: the bounds are told by the refusal
        return _type(parts[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    words = {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}
    return words.get(getattr(annotation, "__name__", ""), str(annotation))


def _default(info: FieldInfo) -> str:
    if info.is_required() and section_in(info.annotation) and get_origin(info.annotation) is not list:
        return "see below"
    if info.is_required():
        return "required" if "default" not in (info.description or "") else "by rule"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{'null' if value is None else str(value).lower() if isinstance(value, bool) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    print(page(), end="")
