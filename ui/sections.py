"""Where a metric stands on the pages. The first part of a key names its section; here parts that belong together are
gathered, so that a page is not a row of sections with one chart each."""

from collections.abc import Collection, Iterable
from typing import Any

PLACES = {
    # first part of the key: (section on the pages, what the name needs to be understood there)
    "reward": ("Reward", ""),
    "Advantage": ("Reward", ""),
    "eval": ("Evals", ""),
    "generated": ("Generated", ""),
    "rollout": ("Rollouts", ""),
    "loss": ("Training", "loss "),
    "clip": ("Training", "clip "),
    "importance": ("Training", "importance "),
    "mismatch": ("Training", "mismatch "),
    "probe": ("Training", "probe "),
    "train": ("Training", ""),
    "metrics": ("Timeline", "metrics "),
    "throughput": ("Throughput", ""),
    "engine": ("Throughput", "engine "),
    "tokens": ("Throughput", "tokens "),
}
ORDER = (
    "General", "Reward", "Sample metrics", "Evals", "Training", "Rollouts", "Discarded", "Generated",
    "Throughput", "ledger", "Timeline",
)  # fmt: skip


def placed(entry: dict[str, Any], environments: Collection[str]) -> dict[str, Any]:
    """The entry of the catalog in its section; metrics of an environment's samples are a group of their section."""
    section = entry["section"]
    if section in environments and "/" in entry["key"]:
        return {**entry, "section": "Sample metrics", "group": section}
    where, prefix = PLACES.get(section, (section, ""))
    return {**entry, "section": where, "name": prefix + entry["name"]}


def in_order(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """By section, in the order of the pages; sections of a trainer of one's own come last, in the order they came."""
    return sorted(entries, key=lambda entry: ORDER.index(entry["section"]) if entry["section"] in ORDER else len(ORDER))


def environments_of(entries: Iterable[dict[str, Any]]) -> set[str]:
    """The environments of a run, which have rewards of their own."""
    return {entry["group"] for entry in entries if entry["section"] == "reward" and entry["group"]}
