"""The registry: every built-in metric, defined once. Aggregation, tooltips, docs/metrics.md and W&B names all come
from here.

A definition is a function; its docstring is the sentence that a reader sees. `<env>` and other names in angle brackets
in a key stand for a name that is known only in a run. A distribution is one definition and several keys: `reward` is
`reward_mean`, `reward_std`, `reward_min`, `reward_max` and `reward_count`.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

STATS = ("mean", "std", "min", "max", "count", "nonfinite_count")
NO_SAMPLE = "the population is empty (std: fewer than two values)"


@dataclass(frozen=True)
class Metric:
    """What a number means. `function` is None for what the trainer or the engine measures itself."""

    key: str
    section: str
    definition: str
    unit: str
    population: str
    reduction: str
    absent_when: str
    source: str
    stats: tuple[str, ...] = ()
    healthy: tuple[float | None, float | None] | None = None
    lower_is_better: bool = False
    function: Callable[..., Any] | None = None

    @property
    def kind(self) -> str:
        return "distribution" if self.stats else "scalar"

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"{self.key}_{stat}" for stat in self.stats) if self.stats else (self.key,)


METRICS: dict[str, Metric] = {}
PATTERNS: list[tuple[re.Pattern[str], Metric]] = []
OWNER: dict[str, Metric] = {}
"""Key as logged → its definition, for keys without a name in angle brackets."""


def add(metric: Metric) -> None:
    """Enter a definition; a second one of the same key is refused."""
    if metric.key in METRICS:
        raise ValueError(f"metric {metric.key!r} is defined twice; give one of them another key")
    METRICS[metric.key] = metric
    for key in metric.keys:
        if "<" in key:
            PATTERNS.append((pattern(key), metric))
        elif key in OWNER:
            raise ValueError(f"metrics {OWNER[key].key!r} and {metric.key!r} both own the key {key!r}; rename one")
        else:
            OWNER[key] = metric


def pattern(key: str) -> re.Pattern[str]:
    parts = re.split(r"(<[a-z_]+>)", key)
    return re.compile("".join("(.+)" if part.startswith("<") else re.escape(part) for part in parts), re.DOTALL)


def metric(
    key: str, *, under: tuple[tuple[str, str, str], ...] = (), **fields: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define a metric by its function. `under` enters it again for (key prefix, section, population)."""

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        first = Metric(key=key, definition=sentence(function), function=function, **fields)
        add(first)
        for prefix, section, population in under:
            add(replace(first, key=prefix + key, section=section, population=population, healthy=None))
        return function

    return define


def measured(key: str, definition: str, **fields: Any) -> None:
    """Define a metric whose value arrives ready: the trainer's, the engine's, the ledger's."""
    add(Metric(key=key, definition=definition, **fields))


def sentence(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function)
    if not text:
        raise ValueError(f"{function.__name__}: a metric's docstring is its definition; write one")
    return " ".join(text.split())


def find(key: str) -> Metric | None:
    """The built-in definition that owns a logged key, or None."""
    if key in OWNER:
        return OWNER[key]
    return next((metric for shape, metric in PATTERNS if shape.fullmatch(key)), None)


def refuse_shadow(key: str, owner: str) -> str | None:
    """Why a user's key may not be used, or None: a built-in name means one thing in every run."""
    found = find(key)
    return (
        None
        if found is None
        else f"{owner} may not use the key {key!r}: it is built in ({found.definition[:80]}); rename it"
    )


def defined_by(source: str, prefix: str = "") -> list[Metric]:
    """Definitions with a function, of one source and one key prefix (a prefix ends with a slash)."""
    return [m for m in METRICS.values() if m.source == source and m.function is not None and prefix_of(m.key) == prefix]


def prefix_of(key: str) -> str:
    return key[: key.rfind("/") + 1]
