"""Configurations for a new run: the files one can start from, and what an edited text comes to."""

import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from app import config as app_config
from ui.names import is_plain_file

FOLDER = Path(__file__).resolve().parent.parent / "configs"
MOST_CHARS = 200_000


def names() -> list[str]:
    """The training configurations that come with the product; other YAML files in the folder do not count."""
    if not FOLDER.is_dir():
        return []
    return [file.name for file in sorted(FOLDER.glob("*.yaml")) if "\nenvironments:" in file.read_text("utf-8")]


def text_of(name: str) -> str:
    if name not in names():
        raise ValueError(f"config {name[:80]!r}: not one of {', '.join(names()) or 'none'}")
    return (FOLDER / name).read_text(encoding="utf-8")


def resolved(text: str) -> app_config.Config:
    """The text as a configuration; a ValueError lists every problem by key and line."""
    if len(text) > MOST_CHARS:
        raise ValueError(f"config: {len(text)} characters; the limit is {MOST_CHARS}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            config = app_config.load(file)
            app_config.refuse_files(config)
            return config
        except ValueError as error:
            raise ValueError(str(error).replace(f"{folder}/", "")) from None


def stored(file: Path) -> dict[str, Any]:
    """A run's configuration as dotted keys. Another version may have written it, so it is read and not validated; a
    ValueError says why it cannot be read."""
    if not is_plain_file(file):
        return {}
    try:
        return flat(app_config.data_of(file))
    except ValueError as error:
        raise ValueError(str(error).replace(f"{file.parent}/", "")) from None


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    if isinstance(data, dict) and data:
        return {k: v for name, item in data.items() for k, v in flat(item, f"{prefix}{name}.").items()}
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        return {k: v for i, item in enumerate(data) for k, v in flat(item, f"{prefix}{i}.").items()}
    return {prefix.rstrip("."): data}


def defaults(num_environments: int = 0) -> dict[str, Any]:
    """The default of every key that has one; what is derived from other keys is null here."""
    found = _defaults_of(app_config.Config)
    for i in range(num_environments):
        found |= _defaults_of(app_config.EnvironmentConfig, f"environments.{i}.")
    return found


def _defaults_of(section: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if field.is_required():
            continue
        value = field.get_default(call_default_factory=True, validated_data={})
        found |= flat({name: value.model_dump() if isinstance(value, BaseModel) else value}, prefix)
    return found


def difference(left: dict[str, Any], right: dict[str, Any]) -> list[dict[str, Any]]:
    """Keys whose values differ, in the order of the right side; a key that one side lacks is marked absent."""
    keys = list(dict.fromkeys([*right, *left]))
    return [
        {"key": key, "left": left.get(key), "right": right.get(key), "absent": _absent(key, left, right)}
        for key in keys
        if _absent(key, left, right) or left[key] != right[key]
    ]


def _absent(key: str, left: dict[str, Any], right: dict[str, Any]) -> str | None:
    return "left" if key not in left else "right" if key not in right else None
