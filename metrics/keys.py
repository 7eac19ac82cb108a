"""Metric keys and values: which are allowed, how a key splits into section, group and name, what counts as a number.

A key is any Unicode text of 1 to 200 characters without control characters; `/` splits it.
"""

import unicodedata
from typing import Any, NamedTuple

MAX_KEY_LENGTH = 200
GENERAL = "General"


class KeyParts(NamedTuple):
    section: str
    group: str
    name: str


def split(key: str) -> KeyParts:
    """No slash: section General. `a/b`: section a. `a/b/c/d`: section a, group b, name `c/d`."""
    parts = key.split("/")
    if len(parts) == 1:
        return KeyParts(GENERAL, "", key)
    if len(parts) == 2:
        return KeyParts(parts[0], "", parts[1])
    return KeyParts(parts[0], parts[1], "/".join(parts[2:]))


def problem(key: Any) -> str | None:
    """Why `key` cannot be the key of a metric, or None when it can."""
    if not isinstance(key, str):
        return f"metric key {key!r} must be text, got {type(key).__name__}"
    if not key:
        return "a metric key must have at least one character, got an empty one"
    if len(key) > MAX_KEY_LENGTH:
        return f"metric key {key[:60]!r}… has {len(key)} characters; at most {MAX_KEY_LENGTH} are allowed"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in key):
        return f"metric key {key!r} holds a control character or half a surrogate pair; remove it"
    if any(not part.strip() for part in key.split("/")):
        return f"metric key {key!r} has an empty part; write section/group/name with text between the slashes"
    if any(part != part.strip() for part in key.split("/")):
        return f"metric key {key!r} has a part that starts or ends with a space; remove the space"
    if any(part in (".", "..") for part in key.split("/")):
        return f"metric key {key!r} has the part '.' or '..'; give the part a name"
    return None


def check(key: Any) -> str:
    """The key itself, or a ValueError that names it and the rule it breaks."""
    if complaint := problem(key):
        raise ValueError(complaint)
    return key


def number(key: str, value: Any) -> float | None:
    """The value as a float: a Python, NumPy or torch scalar. None means absent. Anything else is a TypeError.

    Arrays are refused even when they hold one element: which of several numbers was meant cannot be guessed.
    """
    if value is None:
        return None
    if isinstance(value, bool | int | float):
        return float_of(key, value)
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape) == () and hasattr(value, "item"):
        item = value.item()
        if isinstance(item, bool | int | float):
            return float_of(key, item)
    raise TypeError(f"metric {key!r} must be one number, got {described(value)}; reduce it or leave the key out")


def float_of(key: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise TypeError(f"metric {key!r}: the integer is too large for a float; log its logarithm") from error


def described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    shaped = f" of shape {tuple(shape)}" if shape is not None else ""
    return f"{type(value).__name__}{shaped}"
