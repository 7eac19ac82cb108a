"""What an environment may hand over: one rule for every number, name and text."""

import math
import reprlib
import unicodedata
from collections.abc import Mapping
from numbers import Real
from typing import Any

MAX_NAME = 200
MAX_ERROR = 2_000

# `<name>_mean` and the like of these are built-in metrics, which an environment may not shadow.
BUILT_IN = frozenset(
    {
        "reward",
        "reward_gini",
        "reward_group_std",
        "advantage",
        "tokens_prompt",
        "tokens_completion",
        "tokens_total",
        "off_policy_steps",
        "group_length_gini",
        "group_length_max_median_ratio",
    }
)


class BadEnvironment(ValueError):
    """An environment that cannot be used: it is missing, misnamed, or its class says something impossible."""


def name_of(environment: Any) -> str:
    return environment.name or type(environment).__name__


def shown(value: Any) -> str:
    """A value for an error message: its repr and type, short, whatever it is."""
    try:
        text = reprlib.repr(value)
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything
        text = "a value that cannot be shown"
    return f"{text[:200]} ({type(value).__name__})"


def clean(text: str) -> str:
    """The same text without lone surrogates, which no file or table of ours can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def error_text(text: str) -> str:
    text = clean(text)
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 1] + "…"


def raised(error: BaseException) -> str:
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        said = "an error that cannot be shown"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def number(value: Any, what: str) -> float | None:
    """A finite float; None stays None (absent). Python, NumPy and torch scalars count, bool as 0 or 1."""
    if value is None:
        return None
    is_array = hasattr(value, "shape") and callable(getattr(value, "item", None))
    plain = value.item() if is_array and tuple(value.shape) == () else value
    if not isinstance(plain, Real):
        raise TypeError(f"{what} must be a number, got {shown(value)}")
    try:
        result = float(plain)
    except OverflowError:
        raise ValueError(f"{what} must fit into a float, got {shown(value)}") from None
    if not math.isfinite(result):
        raise ValueError(f"{what} must be finite, got {shown(value)}")
    return result


def metric_name(name: Any, what: str = "sample metric") -> str:
    """A name that can be a metric key: no empty part, no control character, at most 200 characters."""
    if not isinstance(name, str):
        raise TypeError(f"{what}: a name must be a string, got {shown(name)}")
    if not all(name.split("/")):
        raise ValueError(f"{what} {shown(name)}: every part between '/' needs at least one character")
    if len(name) > MAX_NAME:
        raise ValueError(f"{what} {shown(name)}: a name has at most {MAX_NAME} characters, got {len(name)}")
    # Cc is control characters, Cs lone surrogates, Zl and Zp the line and paragraph separators.
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in name):
        raise ValueError(f"{what} {shown(name)}: a name may not hold control characters")
    if name in BUILT_IN:
        raise ValueError(f"{what} {name!r}: the name belongs to a built-in metric; choose another")
    return name


def numbers(values: Any, what: str) -> dict[str, float]:
    """Named numbers; a name whose value is None is absent and left out."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a dict of numbers, got {shown(values)}")
    found = {metric_name(name): number(value, f"{what}[{name!r}]") for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def texts(values: Any, what: str) -> dict[str, str]:
    """Named texts; numbers are written out, a name whose value is None is left out."""
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} must be a dict of texts, got {shown(values)}")
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | None):
            raise TypeError(f"{what} must be a dict of texts, got {shown(name)}: {shown(value)}")
    return {clean(name): clean(str(value)) for name, value in values.items() if value is not None}


def ranges(declared: Any, owner: str) -> dict[str, dict[str, Any]]:
    """`metrics_ranges` of a class: {"name": {"min": a, "max": b, "invert": bool}}, every part optional."""
    if not isinstance(declared, Mapping):
        raise BadEnvironment(f"{owner}: metrics_ranges must be a dict, got {shown(declared)}")
    try:
        return {metric_name(name): _range(name, bounds) for name, bounds in declared.items()}
    except (TypeError, ValueError) as error:
        raise BadEnvironment(f"{owner}: metrics_ranges: {error}") from None


def _range(name: str, bounds: Any) -> dict[str, Any]:
    if not isinstance(bounds, Mapping) or not set(bounds) <= {"min", "max", "invert"}:
        raise TypeError(f"{name!r} must be a dict of 'min', 'max' and 'invert', got {shown(bounds)}")
    if not isinstance(bounds.get("invert", False), bool):
        raise TypeError(f"{name!r}: 'invert' must be true or false, got {shown(bounds['invert'])}")
    low, high = (number(bounds.get(side), f"{name!r}: {side!r}") for side in ("min", "max"))
    if low is not None and high is not None and low >= high:
        raise ValueError(f"{name!r}: 'min' must be below 'max', got {low} and {high}")
    sides = {side: value for side, value in (("min", low), ("max", high)) if value is not None}
    return sides | {"invert": bounds.get("invert", False)}
