"""Self-checks of every step: what must hold in a healthy run, with a threshold, and a likely cause when it does not.

Each check is a function of `Facts`; it returns a `Check`, or None when the step does not have what it needs. A check
that fails is drawn red with its hint ("fail") or amber ("warn"). Nothing here stops a run: the caller of log_step does,
on the checks that its configuration names.
"""

import math
from collections.abc import Callable

import polars as pl

from metrics.numbers import num_tied_groups
from metrics.population import Population
from metrics.sample_metrics import scored
from metrics.schema import BINS, Outcome
from metrics.verdict import Check, Facts, judged

PROBE_LIMIT, PROBE_LIMIT_LOW_PRECISION = 1e-3, 0.25
"""Largest |Δ log p| between an engine and the trainer with the same weights: rounding. The run itself stops at it."""
MOST_WAIT_S = 1.0
"""A step may wait that long for its metrics however short it is."""
STALE = (
    "looks like stale weights in the engine, a temperature that one side does not apply, or a different chat template"
)


CHECKS: list[Callable[[Facts], Check | None]] = []
TROUBLES = {
    "one_bin": "No sample ends in two bins.",
    "late_rows": "The rows of a step come before the step is logged.",
    "samples_missing": "A step is logged with its samples.",
    "steps_skipped": "Steps follow each other.",
    "sample_metrics": "Every sample metric has a usable name, and there are not too many.",
    "store": "What was stored can be read again.",
}
"""Checks of what happens between the steps: name → what must hold. They are told (`Facts.notes`) when they fail."""


def check(function: Callable[[Facts], Check | None]) -> Callable[[Facts], Check | None]:
    CHECKS.append(function)
    return function


def run_checks(facts: Facts) -> list[Check]:
    found = [result for function in CHECKS if (result := function(facts)) is not None]
    return found + [
        Check(name, False, facts.step, None, None, text, level="fail") for name, text in facts.notes.items()
    ]


@check
def ledger_balance(facts: Facts) -> Check | None:
    """Samples started = sum over the bins, so never more ended than started."""
    if "ledger/started" not in facts.values:
        return None
    in_flight = facts.values[f"ledger/{Outcome.IN_FLIGHT}"]
    total = sum(facts.values[f"ledger/{name}"] for name in BINS)
    message = f"started {facts.values['ledger/started']:.0f}, in a bin {total:.0f}, of these in flight {in_flight:.0f}"
    return judged(
        "ledger_balance",
        facts,
        in_flight,
        0.0,
        message,
        "more samples ended than were started: a sample was counted twice, or the count of started samples is late",
        is_floor=True,
    )


@check
def group_advantage_sum(facts: Facts) -> Check | None:
    """The advantages of a group add up to zero, for algorithms that subtract the group's own mean."""
    if facts.config.get("advantage_norm") == "batch":
        return None
    groups = facts.samples.filter(scored()).group_by("group_id").agg(
        pl.col("advantage").sum().abs().alias("sum"), pl.col("advantage").abs().sum().alias("scale"),
        pl.col("advantage").null_count().alias("missing"),
    )  # fmt: skip
    groups = groups.filter(pl.col("missing") == 0)
    if not len(groups):
        return None
    worst = groups.select((pl.col("sum") / (1.0 + pl.col("scale"))).max()).item()
    return judged(
        "group_advantage_sum",
        facts,
        worst,
        1e-4,
        f"largest |Σ advantage| / (1 + Σ|advantage|) of a group: {worst:.2g}",
        "the baseline was computed over other samples than those of the group (a mixed-up group id, "
        "or samples left out of the mean)",
    )


@check
def on_policy_ratio(facts: Facts) -> Check | None:
    """On fresh on-policy data the importance weights are 1 at the start of the step."""
    return fresh(
        "on_policy_ratio",
        "importance/mean",
        facts,
        lambda mean: abs(mean - 1.0),
        0.05 if facts.is_low_precision else 0.005,
    )


@check
def on_policy_kl(facts: Facts) -> Check | None:
    """On fresh on-policy data rollout and trainer are the same policy."""
    return fresh("on_policy_kl", "kl_divergence_inference", facts, abs, 0.02 if facts.is_low_precision else 0.001)


def fresh(name: str, key: str, facts: Facts, distance: Callable[[float], float], limit: float) -> Check | None:
    if key not in facts.values or facts.values.get("off_policy_steps_max") != 0.0:
        return None
    value = distance(facts.values[key])
    return judged(
        name, facts, value, limit, f"{key} = {facts.values[key]:.6g} on data sampled with the current weights", STALE
    )


@check
def mismatch(facts: Facts) -> Check | None:
    """Trainer and engine agree on tokens sampled with the trainer's current weights."""
    key, limit = ("mismatch/logprob_abs_mean", 0.02 if facts.is_low_precision else 0.01)
    if key not in facts.values:
        key, limit = "mismatch/logprob_abs_max", (2.0 if facts.is_low_precision else 0.5)
    if key not in facts.values:
        return None
    return judged("mismatch", facts, facts.values[key], limit, f"{key} = {facts.values[key]:.4g}", STALE)


@check
def probe(facts: Facts) -> Check | None:
    """After a push the engine computes with the trainer's weights."""
    if "probe/logprob_abs_max" not in facts.values:
        return None
    value = facts.values["probe/logprob_abs_max"]
    return judged(
        "probe",
        facts,
        value,
        PROBE_LIMIT_LOW_PRECISION if facts.is_low_precision else PROBE_LIMIT,
        f"probe/logprob_abs_max = {value:.4g}",
        "the engine does not have the weights that were pushed: a tensor that was not sent, the tied "
        "output head, or answers from the prefix cache",
    )


@check
def engine_version(facts: Facts) -> Check | None:
    """No sample is from the future, and none that was trained is older than allowed."""
    ages = facts.samples.filter(pl.col("outcome") == Outcome.TRAINED)["off_policy_steps"].drop_nulls()
    if not len(ages):
        return None
    newest, oldest, allowed = int(ages.min()), int(ages.max()), facts.config.get("max_off_policy_steps")  # type: ignore[arg-type]
    if newest < 0:
        return judged(
            "engine_version",
            facts,
            float(-newest),
            0.0,
            f"a trained sample is {-newest} weight updates ahead of the trainer",
            "the engine's version counter is ahead of the trainer's: check what a restart or a resume resets",
        )
    limit = math.inf if allowed is None else float(allowed)
    return judged(
        "engine_version",
        facts,
        float(oldest),
        limit,
        f"oldest trained sample: {oldest} weight updates behind",
        "a stale sample was trained; the batch must put it in the bin max_async",
    )


@check
def entropy_collapse(facts: Facts) -> Check | None:
    """The policy still explores."""
    if "entropy" not in facts.values:
        return None
    value, floor = facts.values["entropy"], max(0.001, 0.02 * (facts.first_entropy or 0.0))
    return judged(
        "entropy_collapse",
        facts,
        value,
        floor,
        f"entropy {value:.4g} nats, lowest healthy {floor:.4g}",
        "the policy gives nearly always the same answer: lower the learning rate, raise clip_high or entropy_coef",
        level="warn",
        is_floor=True,
    )


@check
def groups_tied(facts: Facts) -> Check | None:
    """Some group has rewards that differ, so there is something to learn."""
    tied, groups = num_tied_groups(Population(facts.samples).where(scored()).column("reward"))
    if not groups:
        return None
    return judged(
        "groups_tied",
        facts,
        float(groups - tied),
        1.0,
        f"{tied} of {groups} groups have all rewards equal",
        "no group can teach anything: the problems are all too easy or too hard, or the reward is constant",
        level="warn",
        is_floor=True,
    )


@check
def finite_values(facts: Facts) -> Check | None:
    """Every number of the step is finite."""
    wrong = sorted(key for key, value in facts.values.items() if not math.isfinite(value))
    names = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
    return judged(
        "finite_values",
        facts,
        float(len(wrong)),
        0.0,
        f"{len(wrong)} values are not finite" + (f": {names}" if wrong else ""),
        "look at grad_norm and the largest importance weight of this and the step before",
    )


@check
def updates_done(facts: Facts) -> Check | None:
    """Every optimiser update of the step moved the weights."""
    if "train/skipped_updates" not in facts.values:
        return None
    skipped, broken = facts.values["train/skipped_updates"], facts.values.get("train/nonfinite_gradients", 0.0)
    message = f"{skipped:g} updates were left out, {broken:g} of them for a gradient that is not finite"
    hint = (
        "a gradient that is not finite: lower the learning rate" if broken else "no sample of the step could be trained"
    )
    return judged("updates_done", facts, skipped, 0.0, message, hint, level="fail" if broken else "warn")


@check
def engine_logprobs(facts: Facts) -> Check | None:
    """The engine's log-probabilities are finite."""
    if "rollout/bad_logprobs" not in facts.values:
        return None
    bad = facts.values["rollout/bad_logprobs"]
    message = f"{bad:.0f} trained tokens have a log-probability from the engine that is not finite"
    return judged(
        "engine_logprobs", facts, bad, 0.0, message, "an entropy near zero, or a fault of the engine's sampler"
    )


@check
def metrics_keep_up(facts: Facts) -> Check | None:
    """The training loop hardly waits for its metrics to be stored."""
    waited = facts.values.get("timing_waiting_for_metrics_total")
    total = facts.values.get("timing_step_total")
    if waited is None or not total:
        return None
    unstored = facts.values.get("metrics/unacknowledged", 0.0)
    message = f"the loop waited {waited:.3g} s of {total:.3g} s for the metrics actor; {unstored:.0f} messages waited"
    hint = "the metrics actor is slow: a busy head node, a slow disk under the run directory, or very large samples"
    return judged("metrics_keep_up", facts, waited, max(MOST_WAIT_S, 0.1 * total), message, hint, level="warn")


@check
def scored_samples(facts: Facts) -> Check | None:
    """Most samples get a reward."""
    ended = facts.samples.filter(~pl.col("outcome").is_in([str(Outcome.CANCELED), str(Outcome.IN_FLIGHT)]))
    if not len(ended):
        return None
    errors = ended.filter(pl.col("outcome") == Outcome.ERROR)
    share = len(errors) / len(ended)
    reason = errors["outcome_reason"].drop_nulls().head(1).to_list()
    return judged(
        "scored_samples",
        facts,
        share,
        0.1,
        f"{len(errors)} of {len(ended)} samples ended in an error",
        f"first reason: {reason[0][:200]}" if reason else "no reason was given",
        level="warn",
    )
