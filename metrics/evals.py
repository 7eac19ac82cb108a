"""What an eval says of a policy (contract section 9), from the rows of its completions.

A completion that failed is neither right nor wrong, so two means are given: over judged ones, and over all that were
requested, where a failure counts as 0. Standard errors are clustered by problem: completions of one prompt are not
independent.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import polars as pl

from metrics.population import pairs
from metrics.registry import measured

Problem = list[float | None]
OF = "completions of the eval, by problem"


def entry(
    key: str, definition: str, *, absent_when: str, reduction: str = "mean over problems", unit: str = ""
) -> None:
    measured(
        f"eval/<eval>/{key}",
        definition,
        section="eval",
        unit=unit,
        population=OF,
        reduction=reduction,
        absent_when=absent_when,
        source="eval",
    )


entry(
    "<metric>_requested_mean",
    "Mean over the problems of the mean over all requested completions, a failed one counting as 0.",
    absent_when="no completion was judged",
)
entry(
    "<metric>_mean",
    "Mean over the judged problems of the mean over their judged completions.",
    absent_when="no completion was judged",
)
entry(
    "<metric>_stderr",
    "Standard error of the mean, clustered by problem.",
    absent_when="fewer than two judged problems",
    reduction="sample standard deviation of the problems' means / √problems",
)
entry(
    "weights_version",
    "Version of the weights that sampled every token of the eval; the run fails where there were several.",
    absent_when="never",
    reduction="none",
)
entry("errored", "Problems whose completions all failed.", unit="problems", absent_when="never", reduction="count")
entry(
    "pass@<k>/<metric>",
    "Chance that at least one of k completions has the metric at its declared maximum: 1 − C(n−c, k)/C(n, k).",
    absent_when="no problem has k completions",
    unit="fraction",
)
entry(
    "pass^<k>/<metric>",
    "Chance that all of k completions have the metric at its declared maximum: C(c, k)/C(n, k).",
    absent_when="no problem has k completions",
    unit="fraction",
)


def eval_metrics(
    rows: pl.DataFrame, maxima: Mapping[str, Mapping[str, float]], pass_k: Mapping[str, Sequence[int]] | None = None
) -> dict[str, float]:
    """eval/* of one eval step.

    maxima: eval name → metric → the value that counts as solved, where it is not 1.0. pass_k: eval name → for which k
    to tell pass@k and pass^k; without it every power of two up to the largest number of completions of a problem.
    """
    values: dict[str, float] = {}
    for name in rows["env"].unique().sort().to_list():
        mine = rows.filter(pl.col("env") == name).sort("problem_id", "group_id", "sample_id")
        found = of_one(mine, maxima.get(name, {}), (pass_k or {}).get(name))
        values |= {f"eval/{name}/{key}": value for key, value in found.items()}
    return values


def of_one(rows: pl.DataFrame, maxima: Mapping[str, float], pass_k: Sequence[int] | None = None) -> dict[str, float]:
    columns = metric_columns(rows)
    values = {"errored": float(sum(all(value is None for value in problem) for problem in columns["reward"]))}
    for name, problems in columns.items():
        values |= means(name, problems) | passes(name, problems, maxima.get(name, 1.0), pass_k)
    return values


def metric_columns(rows: pl.DataFrame) -> dict[str, list[Problem]]:
    """Per metric, the values of each problem's completions. What is not a finite number was not judged."""
    problems = rows.select(pl.coalesce("problem_id", pl.col("group_id").cast(pl.String)))[:, 0].to_list()
    order = list(dict.fromkeys(problems))
    own = [{pair["key"]: pair["value"] for pair in found or ()} for found in rows.select(pairs(rows))[:, 0].to_list()]
    names = sorted({name for found in own for name in found} - {"reward"})
    every = {"reward": rows["reward"].to_list()} | {name: [found.get(name) for found in own] for name in names}
    return {name: by_problem(problems, order, values) for name, values in every.items()}


def by_problem(problems: Sequence[str], order: Sequence[str], values: Sequence[float | None]) -> list[Problem]:
    grouped: dict[str, Problem] = {problem: [] for problem in order}
    for problem, value in zip(problems, values, strict=True):
        grouped[problem].append(value if value is not None and math.isfinite(value) else None)
    return list(grouped.values())


def means(name: str, problems: list[Problem]) -> dict[str, float]:
    judged = [kept for problem in problems if (kept := [value for value in problem if value is not None])]
    if not judged:
        return {}
    each = [fmean(problem) for problem in judged]
    requested = [fmean([0.0 if value is None else value for value in problem]) for problem in problems]
    values = {f"{name}_mean": fmean(each), f"{name}_requested_mean": fmean(requested)}
    return values | ({f"{name}_stderr": stdev(each) / math.sqrt(len(each))} if len(each) > 1 else {})


def passes(name: str, problems: list[Problem], solved: float, pass_k: Sequence[int] | None = None) -> dict[str, float]:
    """For each k, over the problems that have so many completions; none where no problem has."""
    counts = [(len(problem), sum(value == solved for value in problem)) for problem in problems]
    values = {}
    for k in pass_k or powers_of_two(max(n for n, _ in counts)):
        if able := [(n, c) for n, c in counts if n >= k]:
            values[f"pass@{k}/{name}"] = fmean([pass_at_k(n, c, k) for n, c in able])
            values[f"pass^{k}/{name}"] = fmean([pass_all_k(n, c, k) for n, c in able])
    return values


def powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 − C(n−c, k)/C(n, k): the chance that k of the n completions, c of them right, hold a right one. Needs k ≤ n."""
    check_counts(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_all_k(n: int, c: int, k: int) -> float:
    """C(c, k)/C(n, k): the chance that k of the n completions, c of them right, are all right. Needs k ≤ n."""
    check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def check_counts(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of n = {n} completions with c = {c} right: needs 1 <= k <= n and 0 <= c <= n")
