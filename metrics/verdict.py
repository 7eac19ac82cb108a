"""What a self-check looks at and what it says."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl


@dataclass(frozen=True)
class Check:
    check: str
    ok: bool
    step: int
    value: float | None
    threshold: float | None
    message: str
    hint: str = ""
    level: str = "ok"
    is_floor: bool = False
    """The value must be at least the threshold; otherwise at most."""

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Facts:
    """What the checks of one step may look at."""

    step: int
    values: Mapping[str, float]
    samples: pl.DataFrame
    """Arranged rows of the step (metrics.population.arranged)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    first_entropy: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    """Troubles met on the way to this step, by name of their check."""

    @property
    def is_low_precision(self) -> bool:
        return str(self.config.get("dtype", "float32")) in ("bf16", "bfloat16", "fp16", "float16", "half")


def judged(
    name: str,
    facts: Facts,
    value: float,
    threshold: float,
    message: str,
    hint: str,
    *,
    level: str = "fail",
    is_floor: bool = False,
) -> Check:
    """Fails when the value is beyond the threshold, or is not a number."""
    ok = value >= threshold if is_floor else value <= threshold
    told = (message, "", "ok") if ok else (message, hint, level)
    return Check(name, ok, facts.step, value, threshold, *told, is_floor)


def sentence(record: Mapping[str, Any]) -> str:
    """A failed check in one line: its name, what was found, value and threshold, and the likely cause."""
    bound = "at least" if record.get("is_floor") else "at most"
    numbers = "" if record["value"] is None else f" (value {record['value']:.4g}, {bound} {record['threshold']:.4g})"
    cause = f"; likely cause: {record['hint']}" if record["hint"] else ""
    text = f"step {record['step']}: self-check {record['check']}: {record['message']}{numbers}{cause}"
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
