"""Where the time of a step went."""

import polars as pl
import pytest

import metrics
from metrics.schema import samples_table, spans_table
from tests.metrics.builders import sample


def span(kind: str, start: float, end: float, **given):
    return {"step": 1, "lane": "trainer 0", "kind": kind, "start_s": start, "end_s": end} | given


def timings(*spans, samples=(), **given):
    return metrics.step_metrics(pl.DataFrame(samples_table(samples)), pl.DataFrame(spans_table(spans)), **given)


OPERATIONS = [
    span("forward", 1.0, 2.0, microbatch=0),
    span("backward", 2.0, 3.0, microbatch=0),
    span("forward", 3.0, 4.5, microbatch=1),
    span("backward", 4.5, 6.0, microbatch=1),
]


def test_a_step_and_its_operations():
    found = timings(*OPERATIONS, span("waiting_for_data", 0.4, 1.0), span("step", 0.4, 6.0))
    assert found["timing_forward_total"] == 2.5
    assert found["timing_forward_microbatch_mean"] == 1.25
    assert found["timing_step_total"] == pytest.approx(5.6)
    assert found["timing_waiting_for_data"] == pytest.approx(0.6)
    assert found["timing_step_active"] == pytest.approx(5.0)
    assert "timing_optimizer_total" not in found


def test_a_step_begins_where_the_previous_one_ended():
    spans = [*OPERATIONS, span("waiting_for_data", 0.4, 1.0), span("step", 0.9, 6.0)]
    assert timings(*spans, previous_end_s=0.4)["timing_step_total"] == pytest.approx(5.6)
    assert timings(*OPERATIONS, previous_end_s=0.4)["timing_step_total"] == pytest.approx(5.6)


def test_ranks_are_reduced_by_max_and_micro_batches_by_mean():
    spans = [
        span("forward", 0.0, 1.0, microbatch=0),
        span("forward", 0.0, 3.0, microbatch=0, lane="trainer 1"),
        span("forward", 3.0, 9.0, microbatch=1, lane="trainer 0", detail="dummy"),
    ]
    found = timings(*spans)
    assert found["timing_forward_total"] == 7.0
    assert found["timing_forward_microbatch_mean"] == 2.0


def test_loading_the_weights_lasts_from_the_first_start_to_the_last_end():
    spans = [
        span("weight_sync_inference", 1.0, 2.0, lane="engine 0"),
        span("weight_sync_inference", 1.5, 3.5, lane="engine 1"),
    ]
    assert timings(*spans)["timing_weight_sync_inference_total"] == 2.5


def test_without_spans_there_are_no_timings():
    assert not [key for key in timings() if key.startswith(("timing_", "throughput/"))]


def test_throughput_counts_over_the_step():
    found = timings(
        span("step", 0.0, 4.0), samples=[sample(), sample(sample_id=1), sample(sample_id=2, outcome="max_async")]
    )
    assert found["throughput/samples_per_s"] == 0.5


def test_shares_of_the_inference_slots_count_only_the_part_inside_the_window():
    rows = [
        sample(generate_start_s=-5.0, generate_end_s=5.0, reward_start_s=5.0, reward_end_s=6.0),
        sample(sample_id=1, generate_start_s=8.0, generate_end_s=20.0),
        sample(sample_id=2, generate_start_s=11.0, generate_end_s=12.0),
    ]
    found = timings(span("step", 0.0, 10.0), samples=rows, num_slots=2)
    assert found["timing_generation_pct"] == 35.0
    assert found["timing_reward_pct"] == 5.0
    assert found["timing_idle_pct"] == 60.0


def test_an_environment_that_answers_is_no_generation():
    """Two turns of 2 s within 9 s of conversation, the second half outside the window; the rest of the slot is idle."""
    talk = {"generate_start_s": 2.0, "generate_end_s": 11.0, "turn_times_s": [2.0, 4.0, 9.0, 11.0]}
    rows = [
        sample(**talk, reward_start_s=11.0, reward_end_s=12.0),
        sample(sample_id=1, generate_start_s=0.0, generate_end_s=5.0),
        sample(sample_id=2, turn_times_s=[]),
    ]
    found = timings(span("step", 0.0, 10.0), samples=rows, num_slots=1)
    assert (found["timing_generation_pct"], found["timing_reward_pct"]) == (80.0, 0.0)
    assert found["timing_idle_pct"] == 20.0


def test_shares_are_absent_without_generation_times():
    assert "timing_idle_pct" not in timings(span("step", 0.0, 10.0), samples=[sample()], num_slots=2)
