"""The bookkeeper: every message counts once, a restart changes nothing, the books balance."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrics import read, store
from metrics.recompute import recompute
from metrics.schema import BINS, samples_table, spans_table
from tests.metrics.builders import core, group, sample, write_run

CONFIG = {"algorithm": "grpo", "steps": 10}


def step_span(step: int, start: float, end: float) -> dict[str, Any]:
    return {"step": step, "lane": "trainer 0", "kind": "step", "start_s": start, "end_s": end}


def messages(steps: int) -> list[tuple[str, tuple]]:
    """A small run: two groups a step, one of them thrown away on even steps."""
    sent = []
    for step in range(1, steps + 1):
        rows = []
        for place in range(2):
            thrown = place == 1 and step % 2 == 0
            rows += group(
                [1.0, float(thrown)],
                group_id=2 * step + place,
                step=step,
                outcome="zero_advantage" if thrown else "trained",
                sample_metrics={"correct": 1.0},
                generate_start_s=step - 0.9,
                generate_end_s=step - 0.2,
            )
        sent.append(("log_samples", ("batcher", step, samples_table(rows))))
        spans = spans_table([step_span(step, step - 1.0, float(step))])
        sent.append(("log_step", ("trainer", step, step, {"entropy": 1.0, "tokens/trained": 8.0}, spans, 4 * step)))
        if step == 2:
            held_out = samples_table([sample(step=step, outcome="eval", problem_id="p", reward=1.0)])
            sent.append(("log_eval", ("eval", step, step, {}, held_out)))
    return sent


def everything(run_dir: Path) -> tuple:
    found = read.series(run_dir)
    return found["steps"], found["columns"], found["nonfinite"], read.samples(run_dir, limit=None)[1]


def test_a_message_that_is_sent_again_is_counted_once(tmp_path):
    once, again = core(tmp_path / "once", config=CONFIG), core(tmp_path / "again", config=CONFIG)
    for name, arguments in messages(4):
        getattr(once, name)(*arguments)
        first = getattr(again, name)(*arguments)
        second = getattr(again, name)(*arguments)
        if name == "log_step":
            assert {k: v for k, v in first.items() if k != "checks"} == {
                k: v for k, v in second.items() if k != "checks"
            }
    once.close("finished")
    again.close("finished")
    assert everything(tmp_path / "once") == everything(tmp_path / "again")


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_writer_that_is_restarted_after_every_message_writes_the_same_run(tmp_path, lag):
    config = CONFIG | {"max_async_rollout": lag}
    steady, shaky = core(tmp_path / "steady", config=config), core(tmp_path / "shaky", config=config)
    for name, arguments in messages(6):
        kept = getattr(steady, name)(*arguments)
        shaky.store.lock.release()  # what a kill leaves: the lock is free, nothing was closed
        shaky = core(tmp_path / "shaky", config=config)
        assert getattr(shaky, name)(*arguments) == kept
    steady.close("finished")
    shaky.close("finished")
    assert everything(tmp_path / "steady") == everything(tmp_path / "shaky")
    assert read.checks(tmp_path / "steady") == read.checks(tmp_path / "shaky")
    assert recompute(tmp_path / "shaky").differences == []


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(1, 6), st.sampled_from([0, 2]))
def test_how_rows_are_split_into_messages_and_their_order_change_no_bit(tmp_path_factory, rng, parts, lag):
    """Any row in any message of any sender; with samples that run ahead, rows of later steps come first as well."""
    folder, config = tmp_path_factory.mktemp("runs"), CONFIG | {"max_async_rollout": lag}
    whole, split = core(folder / "whole", config=config), core(folder / "split", config=config)
    sent = messages(3)
    pieces = []
    for name, arguments in sent:
        getattr(whole, name)(*arguments)
        if name == "log_samples":
            pieces += [(arguments[1], piece) for piece in torn(arguments[2], parts, rng)]
    for name, arguments in sent:
        if name == "log_samples":
            now = [piece for piece in pieces if piece[0] <= arguments[1] + rng.randint(0, lag)]
            pieces = [piece for piece in pieces if piece not in now]
            rng.shuffle(now)
            for number, (_, rows) in enumerate(now):
                split.log_samples(rng.choice(["a", "b"]) + str(arguments[1]), number, rows)
        else:
            getattr(split, name)(*arguments)
    whole.close("finished")
    split.close("finished")
    assert everything(folder / "whole") == everything(folder / "split")


def torn(rows: pa.Table, parts: int, rng: random.Random) -> list[pa.Table]:
    """Every row in one of so many tables, in any order."""
    places = list(range(rows.num_rows))
    rng.shuffle(places)
    return [rows.take(places[part::parts]) for part in range(parts) if places[part::parts]]


def test_the_books_balance_at_every_step(tmp_path):
    run = write_run(tmp_path, steps=12)
    columns = read.series(run)["columns"]
    started = columns["ledger/started"]
    assert [
        sum(columns[f"ledger/{name}"][i] for name in BINS) for i in range(len(started)) if started[i] is not None
    ] == [value for value in started if value is not None]
    assert columns["ledger/in_flight"][-1] == 0.0
    assert started[-1] == 12 * 16
    rows, total = read.samples(run, limit=None)
    assert total == 12 * 16
    assert columns["ledger/trained"][-1] == rows.filter(rows["outcome"] == "trained").height


def test_samples_that_run_ahead_are_counted_at_their_step(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_samples("batcher", 1, samples_table(group([0.0, 1.0], group_id=1, step=1)))
    one.log_samples("batcher", 2, samples_table(group([0.0, 1.0], group_id=2, step=2)))
    first = one.log_step("trainer", 1, 1, {}, spans_table([]), 6)
    second = one.log_step("trainer", 2, 2, {}, spans_table([]), 6)
    assert (first["ledger/trained"], first["ledger/in_flight"]) == (2.0, 4.0)
    assert (second["ledger/trained"], second["ledger/in_flight"]) == (4.0, 2.0)
    assert first["reward_count"] == 2.0


def check(row: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in row["checks"] if item["check"] == name)


def test_a_sample_that_is_already_in_a_bin_is_refused_and_reported(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_samples("batcher", 1, samples_table([sample(sample_id=7), sample(sample_id=8)]))
    one.log_samples("other", 1, samples_table([sample(sample_id=7, outcome="canceled"), sample(sample_id=9)]))
    row = one.log_step("trainer", 1, 1, {}, spans_table([]), 3)
    assert (row["ledger/trained"], row["ledger/canceled"], row["ledger/in_flight"]) == (3.0, 0.0, 0.0)
    assert not check(row, "one_bin")["ok"]
    assert "the first is sample 7, sent as 'canceled' of step 1" in check(row, "one_bin")["message"]


def test_more_samples_than_were_started_is_a_red_mark(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_samples("batcher", 1, samples_table(group([0.0, 1.0])))
    assert not check(one.log_step("trainer", 1, 1, {}, spans_table([]), 1), "ledger_balance")["ok"]


def test_rows_that_come_too_late_are_counted_in_the_next_step_and_reported(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_step("trainer", 1, 1, {}, spans_table([]), 2, missing=("batcher", 1))
    one.log_samples("batcher", 1, samples_table(group([0.0, 1.0], step=1)))
    row = one.log_step("trainer", 2, 2, {}, spans_table([]), 2)
    one.close("finished")
    assert row["reward_count"] == 2.0
    assert "2 rows of step 1 (2 of them trained) came after that step was logged" in check(row, "late_rows")["message"]
    assert {item["check"] for item in read.checks(tmp_path)} >= {"samples_missing", "late_rows"}
    assert recompute(tmp_path).differences == []


def test_samples_that_end_after_the_last_step_are_kept_and_said(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_step("trainer", 1, 1, {}, spans_table([]), 2)
    one.log_samples("batcher", 2, samples_table(group([0.0, 1.0], step=2, outcome="in_flight")))
    one.close("stopped")
    assert read.checks(tmp_path)[-1]["message"] == "samples that ended after it: 2 in_flight"
    assert read.samples(tmp_path, outcome="in_flight")[1] == 2


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (1, "step 1 comes after step 1"),
        (0, "step 0 comes after"),
        (900, "step 900 is beyond the run, which has 10 steps"),
    ],
)
def test_a_step_out_of_order_is_refused_and_the_next_one_is_kept(tmp_path, step, said):
    one = core(tmp_path, config=CONFIG)
    one.log_step("trainer", 1, 1, {}, spans_table([]), 0)
    with pytest.raises(ValueError, match=said):
        one.log_step("trainer", 77, step, {}, spans_table([]), 0)
    one.log_step("trainer", 2, 2, {}, spans_table([]), 0)
    one.close("finished")
    assert read.series(tmp_path)["steps"] == [1, 2]


def test_a_gap_is_stored_and_reported(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_step("trainer", 1, 1, {}, spans_table([]), 0)
    row = one.log_step("trainer", 4, 4, {}, spans_table([]), 0)
    assert "step 4 follows step 1" in check(row, "steps_skipped")["message"]


def test_keys_of_a_custom_backend_appear_by_section_and_group(tmp_path):
    one = core(tmp_path, config=CONFIG)
    row = one.log_step(
        "trainer", 1, 1, {"my section/my group/head norm": 2, "plain": True, "off": None}, spans_table([]), 0
    )
    one.close("finished")
    assert row["my section/my group/head norm"] == 2.0
    found = {entry["key"]: entry for entry in read.catalog(tmp_path)}
    mine = found["my section/my group/head norm"]
    assert (mine["section"], mine["group"], mine["name"], mine["kind"]) == (
        "my section",
        "my group",
        "head norm",
        "scalar",
    )
    assert found["plain"]["section"] == "General"
    assert "off" not in found


def test_an_integer_then_a_float_then_nothing_then_a_bool_are_one_series(tmp_path):
    one = core(tmp_path, config=CONFIG)
    for step, value in enumerate([1, 1.5, None, True], 1):
        one.log_step("trainer", step, step, {"a": value}, spans_table([]), 0)
    one.close("finished")
    assert read.series(tmp_path, keys=["a"])["columns"] == {"a": [1.0, 1.5, 1.0]}
    assert read.series(tmp_path)["columns"]["a"] == [1.0, 1.5, None, 1.0]


def test_a_refused_value_stores_nothing_of_its_step(tmp_path):
    one = core(tmp_path, config=CONFIG)
    with pytest.raises(TypeError, match="metric 'a' must be one number, got list"):
        one.log_step("trainer", 1, 1, {"fine": 1.0, "a": [1, 2]}, spans_table([]), 0)
    assert one.log_step("trainer", 1, 1, {"fine": 1.0}, spans_table([]), 0)["fine"] == 1.0


def test_evals_before_training_are_step_zero(tmp_path):
    one = core(tmp_path, config=CONFIG)
    rows = samples_table(
        [
            sample(step=0, outcome="eval", problem_id="a", reward=1.0),
            sample(step=0, outcome="eval", problem_id="b", sample_id=1),
        ]
    )
    assert one.log_eval("eval", 0, 0, {"eval/sums/seconds": 2.0}, rows)["eval/sums/reward_mean"] == 0.5
    one.log_step("trainer", 1, 1, {}, spans_table([]), 0)
    one.close("finished")
    found = read.series(tmp_path, keys=["eval/sums/reward_mean", "eval/sums/seconds"])
    assert (found["steps"], found["columns"]["eval/sums/seconds"]) == ([0], [2.0])
    assert read.samples(tmp_path, outcome="eval")[1] == 2
    assert read.samples(tmp_path)[1] == 0


def test_what_does_not_belong_is_refused(tmp_path):
    one = core(tmp_path, config=CONFIG)
    with pytest.raises(ValueError, match="belong to log_eval"):
        one.log_samples("batcher", 1, samples_table([sample(outcome="eval")]))
    with pytest.raises(ValueError, match="must have outcome 'eval', got 'trained'"):
        one.log_eval("eval", 1, 1, {}, samples_table([sample()]))
    with pytest.raises(ValueError, match="must start with 'eval/<name>/'"):
        one.log_eval("eval", 1, 1, {"loss": 1.0}, samples_table([]))


def test_shares_of_the_slots_wait_until_every_sample_of_the_window_has_ended(tmp_path):
    one = core(tmp_path, config=CONFIG | {"max_async_rollout": 1}, num_slots=1)
    one.log_samples("batcher", 1, samples_table([sample(step=1, generate_start_s=0.0, generate_end_s=5.0)]))
    first = one.log_step("trainer", 1, 1, {}, spans_table([step_span(1, 0.0, 10.0)]), 2)
    one.log_samples(
        "batcher", 2, samples_table([sample(step=2, sample_id=1, generate_start_s=6.0, generate_end_s=14.0)])
    )
    one.log_step("trainer", 2, 2, {}, spans_table([step_span(2, 10.0, 20.0)]), 2)
    assert "timing_generation_pct" not in first
    late = read.series(tmp_path, since=1)["late"]
    assert (late["timing_generation_pct"], late["timing_idle_pct"][0][0]) == ([[1, 90.0]], 1)
    one.close("finished")
    assert read.series(tmp_path, keys=["timing_generation_pct"])["columns"]["timing_generation_pct"] == [90.0, 40.0]
    assert recompute(tmp_path).differences == []


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"max_async_rollout": 0, "max_off_policy_steps": 0, "stragglers": "discard"}, 0),
        ({"max_async_rollout": 1, "max_off_policy_steps": 1, "stragglers": "wait"}, 1),
        ({"max_async_rollout": 1, "max_off_policy_steps": 1, "stragglers": "discard"}, 2),
        ({"max_async_rollout": 1, "max_off_policy_steps": 3, "stragglers": "wait"}, 3),
        ({"max_async_rollout": 1, "max_off_policy_steps": 500, "stragglers": "wait"}, 16),
    ],
)
def test_a_sample_that_ends_as_late_as_it_may_counts_in_the_window_in_which_it_was_made(tmp_path, changes, steps):
    one = core(tmp_path, config=CONFIG | changes | {"steps": 100}, num_slots=1)
    last = 2 + steps
    for step in range(1, last + 2):
        begin = 10.0 * (step - 1)
        rows = [sample(step=step, sample_id=step, generate_start_s=begin, generate_end_s=begin + 1)]
        if step == last:  # generated during the second step from its second second on
            rows.append(sample(step=step, sample_id=0, generate_start_s=11.0, generate_end_s=20.0))
        one.log_samples("batcher", step, samples_table(rows))
        one.log_step("trainer", step, step, {}, spans_table([step_span(step, begin, begin + 10)]), last + 2)
    found = read.series(tmp_path, keys=["timing_generation_pct"])
    assert dict(zip(found["steps"], found["columns"]["timing_generation_pct"], strict=True))[2] == 100.0
    one.close("finished")
    assert recompute(tmp_path).differences == []


def test_the_previous_steps_end_is_the_start_of_the_next_also_after_a_restart(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_step("trainer", 1, 1, {}, spans_table([step_span(1, 0.0, 1.0)]), 0)
    one.store.lock.release()
    one = core(tmp_path, config=CONFIG)
    assert one.log_step("trainer", 2, 2, {}, spans_table([step_span(2, 1.5, 3.0)]), 0)["timing_step_total"] == 2.0


def test_memory_does_not_grow_with_the_run(tmp_path):
    one = core(tmp_path, config={"algorithm": "grpo"})
    sizes = []
    for step in range(1, 121):
        rows = [row | {"sample_id": 2 * step + i} for i, row in enumerate(group([0.0, 1.0], group_id=step, step=step))]
        one.log_samples("batcher", step, samples_table(rows))
        one.log_step("trainer", step, step, {}, spans_table([step_span(step, step - 1.0, float(step))]), 2 * step)
        books, tables = one.books, (one.store.series, one.store.samples, one.store.spans)
        held = [
            books.pending,
            books.bins,
            books.cache,
            books.ids.ranges,
            one.windows,
            *(table.seen["x"].ranges for table in tables if "x" in table.seen),
        ]
        sizes.append(sum(len(part) for part in held))
    assert max(sizes[60:]) == max(sizes[:60]) == 3
    assert all(len(level) < 16 for table in tables for level in table.open_levels.values())


@pytest.mark.parametrize("lag", [0, 2])
def test_the_bins_of_steps_long_ago_are_kept_as_their_sum(tmp_path, monkeypatch, lag):
    monkeypatch.setattr(store, "KEPT_STEPS", 4)
    sent = messages(35)
    one = core(tmp_path, config={"max_async_rollout": lag})
    for name, arguments in sent[:-2]:
        getattr(one, name)(*arguments)
    merged = [s for level, segments in one.store.samples.open_levels.items() if level for s in segments]
    assert [len(segment.meta["bins"]["1"]) for segment in merged] == [5, 5]
    one.store.lock.release()
    one = core(tmp_path, config={"max_async_rollout": lag})
    for name, arguments in sent[-2:]:
        row = getattr(one, name)(*arguments)
    one.close("finished")
    assert (row["ledger/trained"], row["ledger/zero_advantage"], row["ledger/in_flight"]) == (106.0, 34.0, 0.0)
    assert recompute(tmp_path).differences == []


def test_a_closed_run_takes_no_more_rows(tmp_path):
    one = core(tmp_path, config=CONFIG)
    one.log_step("trainer", 1, 1, {}, spans_table([]), 0)
    one.close("finished")
    one.close("finished")
    with pytest.raises(RuntimeError, match=r"the run's metrics are closed \(finished\)"):
        one.log_step("trainer", 2, 2, {}, spans_table([]), 0)
    assert one.log_step("trainer", 1, 1, {}, spans_table([]), 0)["ledger/started"] == 0.0
