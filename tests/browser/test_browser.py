"""The dashboard as people use it. What a flow asserts is in flows/<name>.js; pictures go to build/screenshots/."""

import json
import random
import shutil
import threading
import time
from contextlib import contextmanager

import pytest

from metrics.journal import append_line
from tests.browser.conftest import SHOTS, Server
from tests.browser.runs import ATTACK, HOSTILE_KEYS, SCRIPT, Growing, add_spike, odd_run, write_history
from tests.metrics import builders

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


def test_every_page_in_light_and_dark_is_silent_offline_and_accessible(flow, server):
    assert flow("pages", server.url, run=server.runs.mixed)["pages"] == 10
    assert {f"{name}-{theme}.png" for name in ("runs", "metrics", "rollouts") for theme in ("light", "dark")} <= {
        file.name for file in SHOTS.iterdir()
    }


def test_metrics_are_searched_zoomed_smoothed_compared_and_taken_away(flow, server):
    found = flow("metrics", server.url, **vars(server.runs))
    assert found["cards"] >= 240
    assert found["drawn"] < 60


def test_charts_and_cells_show_ranges_bands_gaps_attempts_and_what_is_not_finite(flow, server):
    assert flow("charts", server.url, **vars(server.runs))["pages"] == 6


def test_a_custom_view_is_built_by_mouse_and_keyboard_and_two_browsers_do_not_overwrite_each_other(flow, server):
    assert flow("custom", server.url, **vars(server.runs))["sections"] == 4
    kept = json.loads((server.root / ".telescope" / "layouts.json").read_text())
    assert kept["default"]["layout"]["sections"][-1]["title"] == "Mine <b>"


def test_samples_are_found_and_hostile_texts_stay_texts(flow, server):
    found = flow("samples", server.url, keys=HOSTILE_KEYS, **vars(server.runs))
    assert found["samples"] == 48
    assert found["long_ms"] < 2000


def test_attacks_in_every_text_of_a_run_do_nothing_on_any_page(flow, server):
    found = flow("hostile", server.url, layout=f"enemy {ATTACK}", **vars(server.runs))
    assert found["pages"] == 10


def test_the_timeline_zooms_and_its_table_is_the_metrics(flow, server):
    assert flow("timeline", server.url, **vars(server.runs))["rows"] == 4


def test_runs_are_searched_described_archived_compared_and_prepared(flow, server):
    log = server.root / server.runs.plain / "logs" / "driver.log"
    assert flow("runs", server.url, log=str(log), **vars(server.runs))["runs"] == 6


def test_a_phone_shows_everything_without_scrolling_sideways(flow, server):
    assert flow("phone", server.url, run=server.runs.mixed)["pages"] == 10


def test_without_a_run_every_page_says_what_to_type(flow, browser_tools, tmp_path):
    served = Server(tmp_path / "nothing").start()
    try:
        assert flow("empty", served.url)["fine"]
    finally:
        served.stop()


def test_a_single_value_between_two_nan_is_a_dot_and_a_newest_nan_is_called_one(flow, browser_tools, tmp_path):
    served = Server(tmp_path).start()
    try:
        assert flow("odd", served.url, run=odd_run(tmp_path).name)["newest"] == {"grad_norm": "nan", "up": "inf"}
    finally:
        served.stop()


def test_with_a_token_a_browser_logs_in_once(flow, server):
    served = Server(server.root, TELESCOPE_TOKEN="a-long-secret").start()
    try:
        assert flow("login", served.url, token="a-long-secret")["fine"]
    finally:
        served.stop()


def test_a_growing_run_is_followed_and_a_lost_server_is_said_and_recovered_from(flow, tmp_path):
    run_dir = builders.write_run(tmp_path, name="live", steps=8, groups=2, state="running", seed=9, nan_at=None)
    served = Server(tmp_path).start()
    with growing(run_dir):
        try:
            flow("live", served.url, on={"STOP": served.stop, "START": served.start}, run=run_dir.name)
        finally:
            served.stop()


@contextmanager
def growing(run_dir):
    """One step a second, as a second attempt of the run."""
    done = threading.Event()

    def grow():
        writer = builders.Writer(run_dir, random.Random(1), builders.START, 2, 8, 2, 4, ("sums",), 400)
        step = 8
        while not done.wait(1.0) and step < 300:
            step += 1
            writer.write(step, 5, None)
        writer.core.close("running")

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_zoom_into_a_long_run_shows_every_step_and_stays_while_the_run_grows(flow, tmp_path):
    run_dir = write_history(tmp_path, "long", 5000, 10, state="running")
    add_spike(run_dir, step=3333, value=9.0)
    served, steps = Server(tmp_path).start(), Growing(run_dir, 5000, 10)
    try:
        found = flow("zoom", served.url, on={"GROW": steps.grow}, run=run_dir.name, spike=[3333, 9.0])
    finally:
        steps.store.close()
        served.stop()
    assert found["whole"] <= 2000
    assert found["near"] >= 100


def test_rewards_of_environments_share_a_chart_and_charts_may_choose_their_runs(flow, server):
    found = flow("environments", server.url, **vars(server.runs))
    assert found["normalised"] == pytest.approx(found["raw"][0] / 10, rel=1e-6)


def test_a_run_that_is_removed_while_it_is_looked_at_is_said_and_the_others_go_on(flow, tmp_path):
    first, second = (builders.write_run(tmp_path, name=name, steps=6, groups=2, nan_at=None) for name in ("a", "b"))
    served = Server(tmp_path).start()
    remove = {"REMOVE-A": lambda: shutil.rmtree(first), "REMOVE-B": lambda: shutil.rmtree(second)}
    try:
        assert flow("gone", served.url, on=remove, first=first.name, second=second.name)["fine"]
    finally:
        served.stop()


def test_runs_stand_out_charts_have_sizes_links_are_copied_reasons_unfold_a_start_says_what_it_does(flow, tmp_path):
    first, second, failed, young = (
        builders.write_run(tmp_path, name=name, steps=steps, groups=2, seed=steps, nan_at=None, state=state)
        for name, steps, state in (
            ("a", 12, "finished"),
            ("b", 14, "finished"),
            ("broken", 3, "failed"),
            ("young", 0, "starting"),
        )
    )
    reason = "CUDA out of memory <b>. " * 60
    model = "/checkpoints/of/a/team/policy-of-a-long-experiment-with-many-words-step-000120"
    for twin in (first, second):
        change_record(twin, name="twin")
    change_record(failed, reason=reason, model=model)
    change_record(young, phase="starting the engines", started_at=time.time() - 100)
    next_phase = {"NEXT-PHASE": lambda: change_record(young, phase="loading the trainer")}
    ids = {"first": first.name, "second": second.name, "failed": failed.name, "young": young.name}
    served = Server(tmp_path).start()
    try:
        assert (
            flow("looks", served.url, on=next_phase, reason=reason, model=model, **ids)["phase"]
            == "loading the trainer"
        )
    finally:
        served.stop()


def test_long_words_stay_in_their_cards_and_a_run_with_all_steps_done_has_no_time_left(flow, tmp_path):
    closing, failed = (
        builders.write_run(tmp_path, name=state, steps=6, groups=2, state=state, nan_at=None)
        for state in ("running", "failed")
    )
    change_record(closing, model="/etc")
    change_record(failed, model=SCRIPT)
    said = {"attempt": 1, "step": 6, "check": "scored", "ok": False, "level": "warn", "message": "x" * 400}
    append_line(closing / "metrics" / "checks.jsonl", said | {"hint": "y" * 400})
    served = Server(tmp_path).start()
    models = {closing.name: "/etc", failed.name: SCRIPT}
    try:
        assert flow("crowded", served.url, closing=closing.name, failed=failed.name, models=models)["fine"]
    finally:
        served.stop()


def change_record(run_dir, **fields):
    """As a run writes its record: whole, in one move."""
    record = json.loads((run_dir / "run.json").read_text())
    aside = run_dir / "run.json.tmp"
    aside.write_text(json.dumps(record | fields))
    aside.replace(run_dir / "run.json")
