"""One registry: every logged key has one definition, and the page is written from it."""

import pytest

from metrics.__main__ import DOCS
from metrics.core import MetricsCore
from metrics.docs import page
from metrics.ranges import check_range, declared, shown
from metrics.read import catalog
from metrics.registry import METRICS, Metric, add, find, metric
from metrics.schema import spans_table
from tests.metrics.builders import core, write_run


def test_the_page_of_definitions_is_current():
    assert DOCS.read_text(encoding="utf-8") == page(), "run: python -m metrics docs"


def test_every_definition_is_complete():
    for found in METRICS.values():
        assert found.definition.endswith(".")
        assert found.population
        assert found.reduction
        assert found.absent_when
        assert found.section


def test_every_key_of_a_run_is_defined(tmp_path):
    run = write_run(tmp_path, steps=3, environments=("sums", "words"))
    assert [entry["key"] for entry in catalog(run) if entry["source"] == "custom"] == []


@pytest.mark.parametrize(
    "key",
    [
        "entropy",
        "reward_std",
        "reward_gini_mean",
        "reward/my env/reward_max",
        "generated/tokens_total_count",
        "timing_compute_kl_microbatch_mean",
        "discarded_tokens_prompt_min",
        "ledger/in_flight",
        "eval/sums/correct_stderr",
        "eval/sums/pass^8/correct",
        "timing_idle_pct",
    ],
)
def test_a_built_in_key_is_found(key):
    assert find(key) is not None


@pytest.mark.parametrize("key", ["correct_mean", "sums/correct_mean", "my/own/key", "rewards_mean"])
def test_other_keys_belong_to_the_user(key):
    assert find(key) is None


def test_a_second_definition_of_a_key_is_refused():
    with pytest.raises(ValueError, match="'entropy' is defined twice"):
        add(METRICS["entropy"])
    with pytest.raises(ValueError, match="both own the key 'reward_mean'"):
        add(Metric("reward_mean", "Reward", "Again.", "", "none", "none", "never", "samples"))
    METRICS.pop("reward_mean")


def test_a_metric_without_a_sentence_is_refused():
    def nameless(samples):
        return None

    with pytest.raises(ValueError, match="docstring is its definition"):
        metric("nameless", section="x", unit="", population="", reduction="", absent_when="", source="samples")(
            nameless
        )


def entry(name: str, low: float | None, high: float | None, **metrics_ranges: dict) -> dict:
    return {"name": name, "reward_min": low, "reward_max": high, "metrics_ranges": metrics_ranges}


def test_a_declared_range_comes_from_the_environment_or_from_all_of_them():
    both = [entry("a", 0.0, 1.0), entry("b", -1.0, 2.0, steps={"min": 0, "max": 5, "invert": True})]
    assert declared(both, "reward", "a") == ((0.0, 1.0), False)
    assert declared(both, "reward") == ((-1.0, 2.0), False)
    assert declared(both, "steps") == ((0, 5), True)
    assert declared(both, "steps", "a") == ((None, None), False)
    assert declared([entry("a", 0.0, None)], "reward") == ((0.0, None), False)


def test_a_missing_side_is_what_was_observed():
    assert shown((0.0, None), (0.2, 0.7)) == ([0.0, 0.7], "declared")
    assert shown((None, None), (0.2, 0.7)) == ([0.2, 0.7], "observed")
    assert shown((None, None), (None, None)) == ([None, None], "none")


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0)])
def test_an_empty_range_is_refused(tmp_path, low, high):
    with pytest.raises(ValueError, match=r"environment 'a': reward: min = .* must be below max"):
        MetricsCore(tmp_path, attempt=1, resume_step=0, config={}, environments=[entry("a", low, high)], num_slots=1)


def test_a_range_must_be_finite_and_may_lack_a_side():
    check_range("x", None, 1.0)
    with pytest.raises(ValueError, match="must be a finite number"):
        check_range("x", float("nan"), 1.0)


def test_the_observed_range_is_kept_with_the_run(tmp_path):
    one = core(tmp_path)
    for step, value in enumerate([3.0, float("inf"), -1.0], 1):
        one.log_step("trainer", step, step, {"own": value}, spans_table([]), 0)
    found = next(entry for entry in catalog(tmp_path) if entry["key"] == "own")
    assert (found["range"], found["range_source"], found["source"]) == ([-1.0, 3.0], "observed", "custom")
