"""Self-checks: each with a value that passes and one that fails."""

import math
import re
from pathlib import Path
from typing import get_args

import polars as pl
import pytest

import metrics
from app.config import ConfigError, SelfCheck, from_dict
from metrics import read
from metrics.checks import CHECKS, TROUBLES, run_checks
from metrics.population import arranged
from metrics.schema import samples_table, spans_table
from metrics.verdict import Facts, sentence
from tests.metrics.builders import core, group

GRPO = {"algorithm": "grpo", "dtype": "float32", "max_off_policy_steps": 1}
SMALLEST = {"name": "a", "model": "embedded", "steps": 1, "environments": [{"name": "sums"}]}
FRESH = {"off_policy_steps_max": 0.0}
STEP = {"timing_step_total": 10.0}
SLOW_METRICS = {"timing_waiting_for_metrics_total": 1.1, "metrics/unacknowledged": 1.0}


def result(name: str, values=None, rows=(), config=GRPO, **more):
    facts = Facts(3, values or {}, arranged(pl.DataFrame(samples_table(rows))), config, **more)
    return next((found for found in run_checks(facts) if found.check == name), None)


def with_advantages(advantages: list[float]) -> list[dict]:
    return [row | {"advantage": a} for row, a in zip(group([0.0] * len(advantages)), advantages, strict=True)]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("on_policy_ratio", FRESH | {"importance/mean": 1.001}, FRESH | {"importance/mean": 1.01}),
        ("on_policy_kl", FRESH | {"kl_divergence_inference": 1e-5}, FRESH | {"kl_divergence_inference": 0.01}),
        ("mismatch", {"mismatch/logprob_abs_mean": 0.001}, {"mismatch/logprob_abs_mean": 0.05}),
        ("mismatch", {"mismatch/logprob_abs_max": 0.1}, {"mismatch/logprob_abs_max": 0.7}),
        ("probe", {"probe/logprob_abs_max": 1e-5}, {"probe/logprob_abs_max": 0.01}),
        ("entropy_collapse", {"entropy": 0.5}, {"entropy": 1e-4}),
        ("updates_done", {"train/skipped_updates": 0.0}, {"train/skipped_updates": 1.0}),
        ("engine_logprobs", {"rollout/bad_logprobs": 0.0}, {"rollout/bad_logprobs": 2.0}),
        ("metrics_keep_up", STEP | {"timing_waiting_for_metrics_total": 0.9}, STEP | SLOW_METRICS),
        ("finite_values", {"loss/policy": 0.0}, {"loss/policy": 0.0, "grad_norm": math.nan}),
    ],
)
def test_a_value_is_judged_against_its_threshold(name, good, bad):
    assert result(name, good).ok
    failed = result(name, bad)
    assert not failed.ok
    assert failed.level in ("warn", "fail")
    assert failed.hint


@pytest.mark.parametrize(
    "name",
    [
        "on_policy_ratio",
        "on_policy_kl",
        "mismatch",
        "probe",
        "entropy_collapse",
        "group_advantage_sum",
        "engine_version",
        "groups_tied",
        "metrics_keep_up",
    ],
)
def test_a_check_without_its_values_says_nothing(name):
    assert result(name) is None


def test_stale_data_is_not_expected_to_have_a_ratio_of_one():
    assert result("on_policy_ratio", {"off_policy_steps_max": 1.0, "importance/mean": 1.4}) is None


def test_a_short_step_may_wait_a_moment_for_its_metrics():
    short = {"timing_step_total": 0.5, "timing_waiting_for_metrics_total": 0.4}
    assert result("metrics_keep_up", short).ok
    long = {"timing_step_total": 100.0, "timing_waiting_for_metrics_total": 9.0}
    assert result("metrics_keep_up", long).ok
    assert not result("metrics_keep_up", long | {"timing_waiting_for_metrics_total": 11.0}).ok


def test_low_precision_gets_wider_thresholds():
    values = {"probe/logprob_abs_max": 0.1, "mismatch/logprob_abs_mean": 0.015} | FRESH
    assert result("probe", values, config=GRPO | {"dtype": "bfloat16"}).ok
    assert not result("probe", values).ok


def test_the_advantages_of_a_group_add_up_to_zero():
    assert result("group_advantage_sum", rows=with_advantages([0.75, -0.25, -0.25, -0.25])).ok
    assert not result("group_advantage_sum", rows=with_advantages([0.75, -0.25, -0.25, 0.0])).ok
    config = GRPO | {"algorithm": "reinforce_pp", "advantage_norm": "batch"}
    assert result("group_advantage_sum", rows=with_advantages([1.0, 1.0]), config=config) is None


def test_a_sample_from_the_future_or_too_old_is_found():
    assert result("engine_version", rows=group([0.0], off_policy_steps=1)).ok
    assert "1 weight updates ahead" in result("engine_version", rows=group([0.0], off_policy_steps=-1)).message
    assert "2 weight updates behind" in result("engine_version", rows=group([0.0], off_policy_steps=2)).message
    assert result("engine_version", rows=group([0.0], off_policy_steps=2, outcome="max_async")) is None


def test_entropy_is_held_against_the_first_step():
    assert result("entropy_collapse", {"entropy": 0.05}, first_entropy=2.0).ok
    assert not result("entropy_collapse", {"entropy": 0.03}, first_entropy=2.0).ok


def test_groups_that_are_all_tied_teach_nothing():
    assert not result("groups_tied", rows=group([1.0, 1.0], group_id=1) + group([0.0, 0.0], group_id=2)).ok
    assert result("groups_tied", rows=group([1.0, 1.0], group_id=1) + group([0.0, 1.0], group_id=2)).ok


def test_many_errors_are_said_with_their_reason():
    rows = group([0.0, 0.0], group_id=1) + group(
        [None], group_id=2, outcome="error", outcome_reason="ZeroDivisionError"
    )
    assert result("scored_samples", rows=rows).hint == "first reason: ZeroDivisionError"


def test_a_failure_is_kept_until_it_passes_again_and_its_steps_are_counted(tmp_path):
    one = core(tmp_path)
    for step, norm in enumerate([1.0, math.nan, math.nan, 1.0, 1.0], 1):
        row = one.log_step("trainer", step, step, {"grad_norm": norm}, spans_table([]), 0)
    assert all(item["ok"] for item in row["checks"])
    found = next(item for item in read.checks(tmp_path) if item["check"] == "finite_values")
    assert (found["ok"], found["failures"], found["first_failed_step"], found["last_failed_step"]) == (True, 2, 2, 3)


def test_a_failed_check_in_one_line_has_value_threshold_and_cause():
    probe = result("probe", {"probe/logprob_abs_max": 0.01})
    assert sentence(probe.record()) == (
        "step 3: self-check probe: probe/logprob_abs_max = 0.01 (value 0.01, at most 0.001); likely cause: the engine "
        "does not have the weights that were pushed: a tensor that was not sent, the tied output head, or answers "
        "from the prefix cache"
    )
    entropy = result("entropy_collapse", {"entropy": 0.03}, first_entropy=2.0)
    assert "entropy 0.03 nats, lowest healthy 0.04 (value 0.03, at least 0.04)" in sentence(entropy.record())


def test_a_hostile_reason_stays_in_its_line():
    rows = group([None, None], outcome="error", outcome_reason="one\nSelfCheckError: two\x1b[2J\r\n")
    said = sentence(result("scored_samples", rows=rows).record())
    assert said.isprintable()
    assert said.endswith("first reason: one SelfCheckError: two [2J")


def test_every_check_can_stop_a_run_and_no_other_name_is_accepted():
    """Trouble of a service (W&B, TensorBoard) is no check: it never stops a run."""
    names = {function.__name__ for function in CHECKS} | set(TROUBLES)
    assert set(get_args(SelfCheck)) == names
    with pytest.raises(ConfigError, match=r"stop_on\.1: got 'probes', wanted one of .*; did you mean 'probe'\?"):
        from_dict(SMALLEST | {"stop_on": ["mismatch", "probes"]})


def test_the_names_of_troubles_are_those_that_are_noted(tmp_path):
    """Each note that metrics/core.py and metrics/books.py can take is a known trouble."""
    text = "".join((Path(metrics.__file__).parent / f"{name}.py").read_text() for name in ("core", "books"))
    assert set(re.findall(r'notes\["(\w+)"\]', text)) == set(TROUBLES)
