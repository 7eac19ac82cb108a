"""docs/metrics.md, written from the registry: what each metric is, over which rows, and when it is absent."""

import metrics.step  # noqa: F401 - enters every definition
from metrics import checks
from metrics.evals import OF as EVAL_POPULATION  # noqa: F401 - enters the eval definitions
from metrics.registry import METRICS, Metric
from metrics.sample_metrics import SAMPLE_METRIC, SAMPLE_METRIC_OF_ENV
from metrics.schema import SAMPLES, SPANS, meaning

HEAD = """# Metrics

Written by `python -m metrics docs` from the definitions in `metrics/`; a test fails when it is out of date.

A key with slashes is `section/group/name`. A name in angle brackets stands for one that a run has. `_{mean,std,…}`
is one key for each word: `count` is the number of values, `nonfinite_count` (only when there are some) the number of
values that are not finite and left the statistics. **Absent is not zero**: a key that was not measured at a step has
no point there.

Besides these, a run has the keys that its trainer backend returns from `train_step()`, under their own names.
"""
TAIL = """## Taking them away

`python -m metrics export RUN --csv` (or `--parquet`, `--json`; `--table samples`, `evals`, `spans`) writes a table to a
file. In CSV an absent value is an empty cell, and a text that begins with `=`, `+`, `-`, `@`, a tab or a carriage
return is led by an apostrophe: a spreadsheet would run it as a formula, and a policy can write anything. What is
damaged is named on stderr, the rest is written, and the exit status is 1. `python -m metrics recompute RUN` makes every
number again from the stored rows and prints the differences.

With `wandb` in the configuration the same keys go to Weights & Biases, all attempts to one W&B run. Offline, and where
the service cannot be reached, they are kept in the run directory: `wandb sync RUN/wandb/*` sends them. With
`tensorboard: true` they are also in the run directory's folder `tensorboard`. Whatever fails there is shown among the
self-checks and never stops the run.
"""
ORDER = (
    "General",
    "Reward",
    "Advantage",
    "Sample metrics",
    "<env>",
    "reward",
    "Rollouts",
    "generated",
    "Discarded",
    "ledger",
    "Timeline",
    "eval",
)


def page() -> str:
    every = [*METRICS.values(), SAMPLE_METRIC, SAMPLE_METRIC_OF_ENV]
    sections = sorted(
        {m.section for m in every}, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
    )
    parts = [
        HEAD,
        *[section_text(name, [m for m in every if m.section == name]) for name in sections],
        checks_text(),
        tables_text(),
        TAIL,
    ]
    return "\n".join(parts)


def section_text(name: str, metrics: list[Metric]) -> str:
    rows = [
        f"| {shown_key(m)} | {cell(m.definition)}{remarks(m)} | {cell(m.unit)} | {cell(m.population)} "
        f"| {cell(m.reduction)} | {cell(m.absent_when)} |"
        for m in metrics
    ]
    head = ["| key | definition | unit | over | reduction | absent when |", "|---|---|---|---|---|---|"]
    return "\n".join([f"## {cell(name)}", "", *head, *rows, ""])


def shown_key(metric: Metric) -> str:
    return f"`{metric.key}_{{{','.join(metric.stats)}}}`" if metric.stats else f"`{metric.key}`"


def remarks(metric: Metric) -> str:
    if metric.healthy is None:
        return ""
    low, high = metric.healthy
    words = f"at least {low:g}" if high is None else f"at most {high:g}" if low is None else f"{low:g} to {high:g}"
    return f" Usual: {words}."


def checks_text() -> str:
    told = {function.__name__: " ".join((function.__doc__ or "").split()) for function in checks.CHECKS}
    rows = [f"| `{name}` | {cell(what)} |" for name, what in (told | checks.TROUBLES).items()]
    return "\n".join(
        [
            "## Self-checks",
            "",
            "Run at every step; a failure is shown with its value, its threshold and a likely cause. It stops a run "
            "whose configuration names the check in `stop_on`.",
            "",
            "| check | what must hold |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def tables_text() -> str:
    lines = [
        "## Stored rows",
        "",
        "`metrics/store.py` describes the files. Each table also has `attempt` and `row`.",
        "",
    ]
    for name, schema in (("samples (and evals)", SAMPLES), ("spans", SPANS)):
        lines += [f"### {name}", "", "| column | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{field.name}` | {field.type}{'' if not field.nullable else ', may be absent'} | "
            f"{cell(meaning(field))} |"
            for field in schema
        ]
        lines.append("")
    return "\n".join(lines)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
