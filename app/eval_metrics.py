"""What an eval says of a policy. Pure arithmetic over one environment's samples.

Two means are given, because a sample that failed is neither right nor wrong: over the judged samples, and over all that
were requested, where a failure counts as zero. Standard errors are clustered by problem: completions of one prompt are
not independent.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any


def eval_metrics(label: str, samples: Sequence[Mapping[str, Any]], maxima: Mapping[str, float]) -> dict[str, float]:
    """samples: dicts with `problem_id`, `reward` (None when failed) and `sample_metrics` (pairs).

    maxima: the value of a metric that counts as solved, where it is not 1.0. k of pass@k: every power of two up to the
    number of completions.
    """
    problems: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        problems[sample["problem_id"]].append(sample)
    columns = {"reward": [[s["reward"] for s in problem] for problem in problems.values()]}
    for name in sorted({name for s in samples for name, _ in s["sample_metrics"] or ()}):
        columns[name] = [[dict(s["sample_metrics"] or ()).get(name) for s in p] for p in problems.values()]
    values = {"errored": float(sum(all(reward is None for reward in problem) for problem in columns["reward"]))}
    for name, column in columns.items():
        values |= _means(name, column) | _passes(name, column, maxima.get(name, 1.0))
    return {f"eval/{label}/{key}": value for key, value in values.items()}


def _means(name: str, problems: list[list[float | None]]) -> dict[str, float]:
    judged = [[value for value in problem if value is not None] for problem in problems]
    means = [fmean(problem) for problem in judged if problem]
    if not means:
        return {}
    values = {
        f"{name}_mean": fmean(means),
        f"{name}_requested_mean": fmean([fmean(value or 0.0 for value in problem) for problem in problems]),
    }
    if len(means) > 1:
        values[f"{name}_stderr"] = stdev(means) / math.sqrt(len(means))
    return values


def _passes(name: str, problems: list[list[float | None]], solved: float) -> dict[str, float]:
    """pass@k and pass^k over all n completions of a problem (Chen et al. 2021, equation 1), mean over problems."""
    counts = [(len(problem), sum(value == solved for value in problem)) for problem in problems]
    fewest = min(n for n, _ in counts)
    values = {}
    k = 1
    while k <= fewest:
        values[f"pass@{k}/{name}"] = fmean(pass_at_k(n, c, k) for n, c in counts)
        values[f"pass^{k}/{name}"] = fmean(math.comb(c, k) / math.comb(n, k) for n, c in counts)
        k *= 2
    return values


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k of the n completions is among the c right ones; needs k <= n."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)
