"""Reading: curves, deltas, resumes, thinning, pages of samples, the catalog."""

import json
import math
from pathlib import Path

import numpy as np
import orjson
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.advantage import formula
from metrics import books, read, reader
from metrics.recompute import recompute
from metrics.schema import samples_table, spans_table
from metrics.store import Store
from metrics.thin import bucket_width, thinned, thinned_steps
from tests.metrics.builders import core, group, sample, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"), steps=12, environments=("sums", "words", "logic"), resume_at=8)


def curve(run_dir: Path, values: dict[int, float | None], **given) -> dict:
    store = Store(run_dir)
    store.begin(1, 0, {"config": {}, "environments": [], "num_slots": 1})
    for step, value in values.items():
        points = [(step, "steady", 0.0)] + ([] if value is None else [(step, "a", value)])
        store.add_values(points, attempt=1, source="t", seq=step, time_s=1000.0 + step)
    store.close()
    return read.series(run_dir, **given)


def test_absent_zero_and_not_finite_stay_three_things(tmp_path):
    found = curve(tmp_path, {1: math.nan, 2: 0.5, 3: None, 4: 0.0, 5: math.inf, 6: -math.inf})
    assert found["columns"]["a"] == [None, 0.5, None, 0.0, None, None]
    assert found["nonfinite"] == {"a": [[1, "nan"], [5, "inf"], [6, "-inf"]]}
    assert found["times"] == [1001.0, 1002.0, 1003.0, 1004.0, 1005.0, 1006.0]
    json.loads(orjson.dumps(found), parse_constant=pytest.fail)


def test_a_metric_that_begins_late_has_no_points_before(tmp_path):
    found = curve(tmp_path, {step: None if step < 30 else 1.0 for step in range(1, 33)})
    assert found["columns"]["a"] == [None] * 29 + [1.0] * 3


def test_a_run_without_steps_or_with_one(tmp_path):
    assert read.series(tmp_path / "nothing")["steps"] == []
    assert curve(tmp_path / "one", {1: 2.0})["columns"]["a"] == [2.0]
    assert read.series(tmp_path / "one", since=1)["columns"] == {}


def test_a_delta_holds_the_new_steps_only(tmp_path):
    curve(tmp_path, {step: float(step) for step in range(1, 41)})
    found = read.series(tmp_path, since=38)
    assert (found["steps"], found["columns"]["a"], found["late"], found["last_step"]) == (
        [39, 40],
        [39.0, 40.0],
        {},
        40,
    )


def test_a_delta_reads_new_files_only(tmp_path, monkeypatch):
    curve(tmp_path, {step: float(step) for step in range(1, 41)})
    read.series(tmp_path)
    opened = []
    monkeypatch.setattr(reader, "read_segment", lambda folder, segment, columns: opened.append(segment.file))
    assert read.series(tmp_path, since=40)["steps"] == []
    assert opened == []


def test_what_came_late_is_in_the_delta_beside_the_new_steps(tmp_path):
    one = core(tmp_path)
    for step in (1, 2, 3):
        one.log_step("trainer", step, step, {"a": 1.0}, spans_table([]), 0)
    one.log_eval("eval", 2, 2, {}, samples_table([sample(step=2, outcome="eval", problem_id="p", reward=1.0)]))
    one.close("finished")
    assert read.series(tmp_path, since=3)["late"]["eval/sums/reward_mean"] == [[2, 1.0]]
    assert read.series(tmp_path)["columns"]["eval/sums/reward_mean"] == [None, 1.0, None]


def test_a_resume_replaces_the_tail_it_abandons(run):
    found = read.series(run)
    assert found["steps"] == list(range(13))
    assert found["attempts"] == [{"attempt": 1, "first_step": 1}, {"attempt": 2, "first_step": 9}]
    assert found["rev"] == 2
    assert found["columns"]["ledger/started"][8:11] == [128.0, 16.0, 32.0]  # the books of an attempt begin anew


def test_the_abandoned_tail_is_kept_and_can_be_shown(run):
    assert read.samples(run, attempt=1, limit=None)[0]["step"].max() == 10
    assert read.samples(run, attempt=1, step=10)[1] == 16
    assert read.samples(run, step=10, limit=None)[0]["attempt"].unique().to_list() == [2]
    assert read.samples(run, limit=None)[1] == 12 * 16
    assert set(read.spans(run, 10, 10)["attempt"]) == {2}


def test_two_resumes_of_a_run_are_joined(tmp_path):
    for attempt, resume, last in ((1, 0, 5), (2, 3, 4), (3, 2, 6)):
        one = core(tmp_path, attempt=attempt, resume_step=resume)
        for step in range(resume + 1, last + 1):
            one.log_step(f"trainer/{attempt}", step, step, {"a": 10.0 * attempt + step}, spans_table([]), 0)
        one.close("failed")
    assert read.series(tmp_path)["columns"]["a"] == [11.0, 12.0, 33.0, 34.0, 35.0, 36.0]


def test_a_resume_shortens_the_run_until_it_has_caught_up(tmp_path):
    one = core(tmp_path)
    for step in range(1, 6):
        one.log_step("trainer/1", step, step, {"a": 1.0}, spans_table([]), 0)
    one.close("failed")
    two = core(tmp_path, attempt=2, resume_step=2)
    two.log_step("trainer/2", 3, 3, {"a": 2.0}, spans_table([]), 0)
    found = read.series(tmp_path)
    assert (found["columns"]["a"], found["last_step"], found["rev"]) == ([1.0, 1.0, 2.0], 3, 2)


def test_a_run_resumed_before_its_first_step_is_like_a_fresh_one(tmp_path):
    core(tmp_path).close("failed")
    two = core(tmp_path, attempt=2, resume_step=0)
    two.log_step("trainer/2", 1, 1, {"a": 1.0}, spans_table([]), 0)
    assert read.series(tmp_path)["steps"] == [1]


def test_of_an_eval_that_is_made_again_after_a_resume_only_the_newer_one_is_shown(tmp_path):
    for attempt in (1, 2):
        one = core(tmp_path, attempt=attempt, resume_step=0)
        rows = group([float(attempt - 1)] * 2, outcome="eval", step=0)
        one.log_eval(f"evaluator/{attempt}", 0, 0, {}, samples_table(rows))
        one.close("failed")
    shown, total = read.samples(tmp_path, outcome="eval")
    assert (total, shown["reward"].to_list()) == (2, [1.0, 1.0])
    assert read.samples(tmp_path, outcome="eval", attempt=1)[1] == 2
    assert read.series(tmp_path, keys=["eval/sums/reward_mean"])["columns"] == {"eval/sums/reward_mean": [1.0]}


def test_thinning_keeps_the_extremes_and_says_so(tmp_path):
    values = dict.fromkeys(range(1, 201), 1.0) | {77: 9.0, 78: -9.0}
    found = curve(tmp_path, values, max_points=20)
    assert found["thinned"] == {"bucket_steps": 32, "points": 14, "of": 200}
    assert (max(found["columns"]["a"]), min(found["columns"]["a"])) == (9.0, -9.0)
    assert found["steps"][-1] == 200
    assert found["columns"]["a"].index(9.0) < found["columns"]["a"].index(-9.0)


@given(st.integers(1, 400), st.integers(0, 50), st.integers(4, 60), st.randoms(use_true_random=False))
def test_thinned_curves_have_few_points_and_every_extreme(count, first, max_points, rng):
    steps = np.arange(first, first + count)
    values = np.array([rng.choice([math.nan, rng.random()]) for _ in range(count)])
    width = bucket_width(steps, max_points)
    if width == 1:
        assert count <= max_points
        return
    shown, starts = thinned_steps(steps, width)
    few = thinned(values, starts)
    assert len(shown) == len(few) <= max_points + 1
    if not np.isnan(values).all():
        assert (np.nanmin(few), np.nanmax(few)) == (np.nanmin(values), np.nanmax(values))
    assert np.isnan(few).all() == np.isnan(values).all()


def test_a_growing_curve_keeps_its_old_points():
    first, starts = thinned_steps(np.arange(1, 100), 8)
    longer, _ = thinned_steps(np.arange(1, 120), 8)
    assert longer[: len(first) - 2].tolist() == first[:-2].tolist()
    assert len(starts) == 13


def test_samples_are_filtered_sorted_and_paged(run):
    rows, total = read.samples(run, step=3, sort="reward", descending=True, limit=5)
    assert (total, len(rows)) == (16, 5)
    assert rows["reward"].to_list() == sorted(rows["reward"].to_list(), reverse=True)
    everything = read.samples(run, step=3, limit=None)[0]
    pages = [read.samples(run, step=3, offset=offset, limit=5)[0] for offset in (0, 5, 10, 15)]
    assert pl.concat(pages)["sample_id"].to_list() == everything["sample_id"].to_list()
    one = everything.row(6, named=True)
    assert read.samples(run, sample_id=one["sample_id"], step=3)[0].row(0, named=True) == one
    assert read.samples(run, group_id=one["group_id"], step=3)[1] == 4
    assert read.samples(run, env="words", outcome=["trained", "max_async"], limit=None)[0][
        "env"
    ].unique().to_list() == ["words"]


def test_rows_without_the_sorted_value_come_last(tmp_path):
    one = core(tmp_path)
    own = [{"x": 1.0}, {}, {"x": 3.0}, {"x": None}]
    one.log_samples("b", 1, samples_table(sample(sample_id=i, sample_metrics=mine) for i, mine in enumerate(own)))
    for descending, expected in ((True, [2, 0]), (False, [0, 2])):
        rows, _ = read.samples(tmp_path, sort="sample_metrics.x", descending=descending)
        assert rows["sample_id"].to_list()[:2] == expected


@pytest.mark.parametrize(
    ("search", "expected"), [("ÜNÏCÖDÉ", 1), ("(.*", 1), ("a+b", 0), ("nothing like it", 0), ("\\d", 0), ("what", 2)]
)
def test_a_search_is_plain_text_without_regard_to_case(tmp_path, search, expected):
    one = core(tmp_path)
    texts = [("What?", "ünïcödé"), ("what (.*", "x")]
    one.log_samples(
        "b", 1, samples_table(sample(sample_id=i, prompt=p, completion=c) for i, (p, c) in enumerate(texts))
    )
    assert read.samples(tmp_path, search=search)[1] == expected


def test_a_wrong_column_is_refused_by_name(run):
    with pytest.raises(ValueError, match="unknown column 'prmpt'"):
        read.samples(run, columns=["prmpt"])
    with pytest.raises(ValueError, match="cannot sort by 'tags'"):
        read.samples(run, sort="tags")


def test_only_the_asked_columns_come_back(run):
    rows, _ = read.samples(run, columns=["completion", "sample_id"], limit=3)
    assert rows.columns == ["completion", "sample_id"]


def test_spans_of_some_steps(run):
    rows = read.spans(run, 3, 4)
    assert rows["step"].unique().sort().to_list() == [3, 4]
    assert len(rows) == 2 * 13


def test_the_catalog_groups_a_distribution_and_knows_its_range(run):
    found = {entry["key"]: entry for entry in read.catalog(run)}
    reward = found["reward"]
    assert reward["stats"] == {
        "mean": "reward_mean",
        "std": "reward_std",
        "min": "reward_min",
        "max": "reward_max",
        "count": "reward_count",
    }
    assert (reward["section"], reward["range"], reward["range_source"]) == ("Reward", [0.0, 1.0], "declared")
    assert (found["sums/tries"]["section"], found["sums/tries"]["invert"], found["sums/tries"]["range"]) == (
        "sums",
        True,
        [0.0, 5.0],
    )
    assert found["tries"]["section"] == "Sample metrics"
    assert found["reward/words/reward"]["group"] == "words"
    assert found["entropy"]["definition"].startswith("Mean of −Σ p ln p")
    assert (found["entropy"]["section"], found["entropy"]["kind"], found["entropy"]["range_source"]) == (
        "General",
        "scalar",
        "observed",
    )
    assert (found["loss/policy"]["section"], found["loss/policy"]["name"]) == ("loss", "policy")
    assert found["eval/sums/pass@2/reward"]["group"] == "sums"
    logged = set(read.series(run)["columns"])
    listed = {key for entry in found.values() for key in (entry["stats"].values() or [entry["key"]])}
    assert listed == logged


@pytest.mark.parametrize(
    ("algorithm", "norm", "said"),
    [
        ("grpo", "group", "(r − mean) / (standard deviation + 0.0001) of the group"),
        ("grpo", "batch", "a = r − mean of the group, then (a − mean) / (standard deviation + 0.0001) over the step"),
        ("rloo", "none", "r − mean of the group's other rewards"),
        ("dr_grpo", "none", "r − mean of the group"),
    ],
)
def test_the_catalog_tells_the_formula_of_the_runs_advantages(tmp_path, algorithm, norm, said):
    one = core(tmp_path, config={"advantage_formula": formula(algorithm, norm)})
    one.log_samples("b", 1, samples_table(group([0.0, 1.0])))
    one.log_step("trainer", 1, 1, {}, spans_table([]), 2)
    one.close("finished")
    found = {entry["key"]: entry["definition"] for entry in read.catalog(tmp_path)}
    assert found["advantage"].endswith(f"In this run: {said}.")
    assert "In this run" not in found["reward"]


def test_runs_are_listed_newest_first_with_their_headlines(tmp_path):
    first, second = (
        write_run(tmp_path, steps=3, name="a"),
        write_run(tmp_path, steps=4, name="b", state="failed", seed=1),
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{not json")
    found = read.runs(tmp_path)
    assert [item["id"] for item in found] == [second.name, first.name, "broken"]
    assert (found[0]["last_step"], found[0]["state"], found[0]["elapsed_s"]) == (4, "failed", 18.0)
    assert set(found[1]["latest"]) >= {"reward_mean", "entropy"}
    assert found[2]["state"] == "unreadable"


@pytest.mark.parametrize("name", ["../x", "a/../../b", "/etc/x", "a\\..\\b", "..", ".", "", "a\x00b"])
def test_a_run_id_is_never_a_path(tmp_path, name):
    with pytest.raises(ValueError, match="must be the name of a folder"):
        read.run(tmp_path, name)


def test_what_selection_throws_away_is_shown_by_reason_environment_and_length(tmp_path):
    one = core(tmp_path)
    rows = [
        *group([1.0, 0.0], group_id=1, completion_tokens=10),
        *group([1.0, 1.0], group_id=2, completion_tokens=100, outcome="zero_advantage", env="words"),
    ]
    one.log_samples("b", 1, samples_table(rows))
    found = {(row["by"], row["bucket"]): row for row in read.bias(tmp_path).to_dicts()}
    assert (found["all", "all"]["drop_pct"], found["all", "all"]["zero_advantage"]) == (50.0, 2)
    assert (found["environment", "words"]["drop_pct"], found["environment", "sums"]["drop_pct"]) == (100.0, 0.0)
    assert found["length", "64 to 255"]["dropped"] == 2
    assert (found["all", "all"]["reward_mean_generated"], found["all", "all"]["reward_mean_trained"]) == (0.75, 0.5)


def test_drop_rates_leave_out_what_a_resume_abandoned_and_rewards_that_are_not_finite(tmp_path):
    first = core(tmp_path)
    for step in (1, 2):
        rows = group([1.0, 0.0], group_id=step, step=step, outcome="zero_advantage" if step == 2 else "trained")
        first.log_samples("b", step, samples_table(rows))
    first.close("stopped")
    again = core(tmp_path, attempt=2, resume_step=1)
    again.log_samples("b/2", 1, samples_table(group([float("nan"), 0.25, 0.5], group_id=9, step=2)))
    whole = next(row for row in read.bias(tmp_path).to_dicts() if row["by"] == "all")
    assert (whole["generated"], whole["dropped"], whole["zero_advantage"]) == (5, 0, 0)
    assert whole["reward_mean_generated"] == pytest.approx((1.0 + 0.0 + 0.25 + 0.5) / 4)


def test_samples_of_a_version_without_conversations_stay_readable_and_mergeable(tmp_path, monkeypatch):
    """The column `turns` came later: a run that was begun without it is read, resumed, merged and recomputed."""
    turns = [{"role": "assistant", "text": "7", "first_token": 0, "num_tokens": 1, "tool": None, "is_error": False}]
    turns[0] |= {"start_s": 1.0, "end_s": 2.0}

    def write(attempt: int, steps: range, **given) -> None:
        writer = core(tmp_path, attempt=attempt, resume_step=steps[0] - 1)
        for step in steps:
            rows = [sample(step=step, sample_id=step, group_id=step, completion=str(step), **given)]
            writer.log_samples(f"batcher/{attempt}", step, samples_table(rows))
            writer.log_step(f"trainer/{attempt}", step, step, {}, spans_table([]), step)
        writer.close("finished")

    conformed = books.conform
    with monkeypatch.context() as older:
        older.setattr(
            books, "conform", lambda t, s: conformed(t, s).drop_columns(["turns"] if "turns" in s.names else [])
        )
        write(1, range(1, 4))
    assert read.samples(tmp_path, step=2)[0]["turns"].to_list() == [None]
    write(2, range(4, 20), turns=turns)
    assert list((tmp_path / "metrics/samples").glob("*.L1.parquet")), "old and new rows were merged"
    found = read.samples(tmp_path, limit=None)[0]
    assert found.sort("step")["turns"].to_list() == [None] * 3 + [turns] * 16
    assert recompute(tmp_path).differences == []
