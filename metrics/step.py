"""The numbers of a step, from its rows: one pure function of polars frames. No Ray, no torch, no files."""

from dataclasses import dataclass

import polars as pl

import metrics.engine_metrics
import metrics.trainer_metrics  # noqa: F401 - enters its definitions
from metrics.discarded import Discards
from metrics.keys import problem
from metrics.ledger import balance  # noqa: F401 - enters its definitions
from metrics.numbers import Column, statistics
from metrics.population import Population, arranged
from metrics.registry import Metric, defined_by, refuse_shadow
from metrics.sample_metrics import custom_statistics, scored
from metrics.schema import Outcome
from metrics.timeline import slot_shares, spans_of, timings, window

MAX_SAMPLE_METRICS = 1_000
"""Names of sample metrics in one step, over all environments. More is a mistake, and would drown every other chart."""


@dataclass(frozen=True)
class StepNumbers:
    """The values of a step; the names of its sample metrics by environment; what had to be left out, in words."""

    values: dict[str, float]
    sample_metrics: dict[str, list[str]]
    left_out: list[str]


def step_metrics(
    samples: pl.DataFrame, spans: pl.DataFrame, *, num_slots: int | None = None, previous_end_s: float | None = None
) -> dict[str, float]:
    """Every number of a step that its rows decide: sections 4 to 6 of the contract. A key that is not there is absent.

    `samples` are the rows of the step, discarded ones included. `previous_end_s` is when the previous step ended;
    without it the start of the `step` span is taken. Without `num_slots` the shares of the inference slots' time are
    left out.
    """
    return step_numbers(arranged(samples), spans, num_slots=num_slots, previous_end_s=previous_end_s).values


def step_numbers(
    rows: pl.DataFrame, spans: pl.DataFrame, *, num_slots: int | None, previous_end_s: float | None
) -> StepNumbers:
    """`step_metrics` of rows that are arranged, with what is known about the sample metrics."""
    everything = Population(rows)
    trained = everything.of(Outcome.TRAINED)
    own, names, left_out = own_metrics(trained)
    timeline = spans_of(spans)
    values = row_values(everything, trained) | own | timings(timeline, previous_end_s)
    if num_slots is not None:
        values |= slot_shares(rows, window(timeline, previous_end_s), num_slots)
    seconds = values.get("timing_step_total", 0.0)
    if seconds > 0:
        values["throughput/samples_per_s"] = len(trained) / seconds
    return StepNumbers(values, names, left_out)


def row_values(everything: Population, trained: Population) -> dict[str, float]:
    """The built-in numbers of a step's samples."""
    found: dict[str, float] = {}
    measure(found, defined_by("samples"), trained)
    measure(found, defined_by("samples", "generated/"), everything.where(scored()), "generated/")
    per_environment = defined_by("samples", "reward/<env>/")
    for name, part in trained.environments():
        measure(found, per_environment, part, f"reward/{name}/")
    measure(found, defined_by("discards"), Discards(everything))
    found["tokens/generated"] = float(everything.total("completion_tokens"))
    found["tokens/prompt"] = float(everything.total("prompt_tokens"))
    return found


def measure(found: dict[str, float], metrics: list[Metric], subject: Population | Discards, prefix: str = "") -> None:
    """Each metric of the subject, under its key (the name after the last slash) with the prefix in front."""
    for metric in metrics:
        assert metric.function is not None
        key = prefix + metric.key[metric.key.rfind("/") + 1 :]
        value = metric.function(subject)
        if isinstance(value, Column):
            found.update({f"{key}_{stat}": number for stat, number in statistics(value).items()})
        elif value is not None:
            found[key] = value


def own_metrics(trained: Population) -> tuple[dict[str, float], dict[str, list[str]], list[str]]:
    """The environments' own numbers: values by key, names by environment, and what had to be left out, in words."""
    names: dict[str, list[str]] = {}
    left_out: dict[str, None] = {}
    found: dict[str, float] = {}
    parts = list(trained.environments())
    for environment, part in parts:
        by_name = custom_statistics(part)
        names[environment] = allowed(by_name, environment, left_out)
        found |= flat({f"{environment}/{name}": by_name[name] for name in names[environment]})
        if len(parts) == 1:
            found |= flat({name: by_name[name] for name in names[environment]})
    if len(parts) > 1:
        good = {name for mine in names.values() for name in mine}
        found |= flat({name: stats for name, stats in custom_statistics(trained).items() if name in good})
    return found, names, list(left_out)


def allowed(by_name: dict[str, dict[str, float]], environment: str, left_out: dict[str, None]) -> list[str]:
    good: list[str] = []
    for name in by_name:
        complaint = name_problem(name, environment)
        if complaint is None and len(good) >= MAX_SAMPLE_METRICS:
            complaint = (
                f"environment {environment!r}: more than {MAX_SAMPLE_METRICS} names of sample metrics; "
                f"{name[:60]!r} and others are left out"
            )
        if complaint is None:
            good.append(name)
        elif len(left_out) < 20:
            left_out[complaint] = None
    return good


def name_problem(name: str, environment: str) -> str | None:
    owner = f"sample metric {name[:60]!r} of environment {environment!r}"
    if complaint := problem(f"{environment}/{name}_nonfinite_count"):
        return f"{owner}: {complaint}"
    for key in (f"{name}_mean", f"{environment}/{name}_mean"):
        if complaint := refuse_shadow(key, owner):
            return complaint
    return None


def flat(by_key: dict[str, dict[str, float]]) -> dict[str, float]:
    return {f"{key}_{stat}": number for key, stats in by_key.items() for stat, number in stats.items()}
