"""What metrics a run has, and what each of them means: the registry, applied to the keys that were logged."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import metrics.step  # noqa: F401 - enters every definition
from metrics import keys
from metrics.evals import OF as EVAL_POPULATION  # noqa: F401 - enters the eval definitions
from metrics.ranges import UNKNOWN, Range, declared, shown
from metrics.reader import journal, manifest, remembered, stamps
from metrics.registry import STATS, Metric, find
from metrics.sample_metrics import SAMPLE_METRIC, SAMPLE_METRIC_OF_ENV
from metrics.segments import MANIFEST
from metrics.store import ATTEMPTS, FOLDER, merge_series_meta

Observed = Mapping[str, Sequence[Any]]
"""Key → [smallest finite value, largest finite value, number of rows]."""
SPREAD = (*STATS, "gini_mean")


def attempts(run_dir: Path) -> list[dict[str, Any]]:
    """The attempts of a run, in order: attempt, resume_step, time, config, environments, num_slots, pid, host."""
    return sorted(journal(Path(run_dir) / FOLDER / ATTEMPTS).items, key=lambda item: item["attempt"])


def visible_until(history: Sequence[Mapping[str, Any]]) -> dict[int, int | None]:
    """Per attempt the last step that still counts: a later attempt replaces what lies after the step it resumed
    from."""
    ends: dict[int, int | None] = {}
    for place, item in enumerate(history):
        ends[item["attempt"]] = min((later["resume_step"] for later in history[place + 1 :]), default=None)
    return ends


def catalog(run_dir: Path) -> list[dict[str, Any]]:
    """One entry a metric, by section, group and name. Read from the manifest alone, whatever the run's length."""
    folder = Path(run_dir) / FOLDER
    stamped = stamps(folder / "series" / MANIFEST, folder / ATTEMPTS)
    return [dict(entry) for entry in remembered(("catalog", str(folder)), stamped, lambda: listed(Path(run_dir)))]


def listed(run_dir: Path) -> list[dict[str, Any]]:
    meta = merge_series_meta([segment.meta for segment in manifest(run_dir / FOLDER / "series").segments])
    history = attempts(run_dir)
    environments = history[-1]["environments"] if history else []
    found = entries(meta["keys"], meta["sample_metrics"], environments)
    formula = history[-1]["config"].get("advantage_formula") if history else None
    for entry in found:
        if entry["key"] == "advantage" and formula:
            entry["definition"] += f" In this run: {formula}."
    return found


def entries(
    observed: Observed, sample_metrics: Mapping[str, Sequence[str]], environments: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    owned = sample_metric_keys(sample_metrics)
    grouped: dict[str, tuple[Metric, dict[str, str], tuple[str, str | None] | None]] = {}
    for key in observed:
        base, stat, metric, subject = described(key, owned)
        grouped.setdefault(base, (metric, {}, subject))[1][stat] = key
    found = [entry(base, *parts, observed=observed, environments=environments) for base, parts in grouped.items()]
    return sorted(found, key=lambda item: (order(item["section"]), item["section"], item["group"], item["name"]))


def sample_metric_keys(sample_metrics: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str, str, str | None]]:
    """Logged key → base, statistic, name of the metric, environment (None: over all)."""
    owned: dict[str, tuple[str, str, str, str | None]] = {}
    for environment, names in sample_metrics.items():
        for name in names:
            for base, of in ((name, None), (f"{environment}/{name}", environment)):
                owned |= {f"{base}_{stat}": (base, stat, name, of) for stat in SPREAD}
    return owned


def described(
    key: str, owned: Mapping[str, tuple[str, str, str, str | None]]
) -> tuple[str, str, Metric, tuple[str, str | None] | None]:
    """The entry a key belongs to, its statistic ("value" for a scalar), its definition, and what its range is
    declared for."""
    metric = find(key)
    if metric is not None:
        return of_built_in(key, metric)
    if key in owned:
        base, stat, name, environment = owned[key]
        template = SAMPLE_METRIC if environment is None else SAMPLE_METRIC_OF_ENV
        return base, stat, template, (name, environment)
    return key, "value", custom(key), None


def of_built_in(key: str, metric: Metric) -> tuple[str, str, Metric, tuple[str, str | None] | None]:
    base, stat = key, "value"
    for candidate in metric.stats:
        if key.endswith(f"_{candidate}") and (key == f"{metric.key}_{candidate}" or "<" in metric.key):
            base, stat = key.removesuffix(f"_{candidate}"), candidate
    subject: tuple[str, str | None] | None = None
    if metric.key in ("reward", "generated/reward"):
        subject = ("reward", None)
    elif metric.key == "reward/<env>/reward":
        subject = ("reward", base.removeprefix("reward/").removesuffix("/reward"))
    return base, stat, metric, subject


def custom(key: str) -> Metric:
    return Metric(
        key=key,
        section=keys.split(key).section,
        definition="Returned by the trainer backend of this run; it has no built-in definition.",
        unit="",
        population="the step",
        reduction="the backend's own",
        absent_when="the backend did not return it",
        source="custom",
    )


def entry(
    base: str,
    metric: Metric,
    stats: dict[str, str],
    subject: tuple[str, str | None] | None,
    *,
    observed: Observed,
    environments: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    parts = keys.split(base)
    is_plain = metric.source == "custom" or "<" in metric.section or "/" in base
    section = parts.section if is_plain and metric.section != "Sample metrics" else metric.section
    section, group, name = (section, parts.group, parts.name) if "/" in base else (section, "", base)
    if metric is SAMPLE_METRIC and "/" in base:
        section = parts.section
    bounds, invert = declared(environments, *subject) if subject is not None else (UNKNOWN, metric.lower_is_better)
    sides, source = shown(bounds, seen(stats, observed))
    return {
        "key": base,
        "section": section,
        "group": group,
        "name": name,
        "kind": metric.kind,
        "stats": stats if metric.kind == "distribution" else {},
        "unit": metric.unit,
        "definition": metric.definition,
        "population": metric.population,
        "reduction": metric.reduction,
        "absent_when": metric.absent_when,
        "source": metric.source,
        "healthy": list(metric.healthy) if metric.healthy else None,
        "range": sides,
        "range_source": source,
        "declared": list(bounds),
        "invert": invert,
    }


def seen(stats: Mapping[str, str], observed: Observed) -> Range:
    """Smallest and largest finite value of the curves in the entry's chart."""
    drawn = [key for stat, key in stats.items() if stat in ("mean", "min", "max", "value")]
    lows = [observed[key][0] for key in drawn if observed[key][0] is not None]
    highs = [observed[key][1] for key in drawn if observed[key][1] is not None]
    return min(lows, default=None), max(highs, default=None)


SECTIONS = (
    "General",
    "Reward",
    "Advantage",
    "Sample metrics",
    "reward",
    "eval",
    "Rollouts",
    "Discarded",
    "generated",
    "Timeline",
)


def order(section: str) -> int:
    return SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)


assert SAMPLE_METRIC.stats == SPREAD
