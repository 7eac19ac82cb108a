"""What comes in at the door of a run's metrics, checked: the trainer's values, the environments' ranges, the config."""

from collections.abc import Mapping, Sequence
from typing import Any

from metrics import keys
from metrics.ranges import check_range
from metrics.registry import find, refuse_shadow

RESERVED = ("checks",)
"""Names that the returned row of a step uses for itself."""


def step_values(values: Mapping[str, Any]) -> dict[str, float]:
    """What a trainer backend returned, checked: its own built-in keys, and any other key that no definition owns."""
    found: dict[str, float] = {}
    for key, value in values.items():
        keys.check(key)
        number = keys.number(key, value)
        owner = find(key)
        if owner is not None and owner.source != "trainer":
            raise ValueError(refuse_shadow(key, "train_step()"))
        if key in RESERVED:
            raise ValueError(f"train_step() may not use the key {key!r}; rename it")
        if number is not None:
            found[key] = number
    return found


def eval_values(values: Mapping[str, Any]) -> dict[str, float]:
    """What an evaluator measured besides its rows, checked."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if not keys.check(key).startswith("eval/"):
            raise ValueError(f"log_eval: key {key!r} must start with 'eval/<name>/'")
        number = keys.number(key, value)
        if number is not None:
            found[key] = number
    return found


def maxima(environments: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Per environment and metric the declared maximum: what counts as solved."""
    found: dict[str, dict[str, float]] = {}
    for environment in environments:
        ranges = environment.get("metrics_ranges") or {}
        mine = {name: bounds["max"] for name, bounds in ranges.items() if bounds.get("max") is not None}
        if environment.get("reward_max") is not None:
            mine["reward"] = environment["reward_max"]
        found[environment["name"]] = mine
    return found


def asked_pass_k(environments: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Per eval for which k it tells pass@k, where that was said."""
    return {environment["name"]: environment["pass_k"] for environment in environments if environment.get("pass_k")}


def check_environments(environments: Sequence[Mapping[str, Any]]) -> None:
    for environment in environments:
        name = keys.check(environment["name"])
        check_range(f"environment {name!r}: reward", environment.get("reward_min"), environment.get("reward_max"))
        for metric, bounds in (environment.get("metrics_ranges") or {}).items():
            check_range(f"environment {name!r}: metric {metric!r}", bounds.get("min"), bounds.get("max"))


def plain(value: Any) -> Any:
    """Configuration as JSON can hold it; what it cannot hold, as its text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
