"""The dashboard as people use it. What a flow asserts is in flows/<name>.js; pictures go to build/screenshots/."""

import json
import os
import random
import subprocess
import threading
import time

import pytest

from tests.browser.conftest import HERE, SHOTS, Server
from tests.browser.runs import HOSTILE_KEYS
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


def test_a_custom_view_is_built_by_mouse_and_keyboard_and_two_browsers_do_not_overwrite_each_other(flow, server):
    assert flow("custom", server.url, **vars(server.runs))["sections"] == 4
    kept = json.loads((server.root / ".telescope" / "layouts.json").read_text())
    assert kept["default"]["layout"]["sections"][-1]["title"] == "Mine <b>"


def test_samples_are_found_and_hostile_texts_stay_texts(flow, server):
    found = flow("samples", server.url, keys=HOSTILE_KEYS, **vars(server.runs))
    assert found["samples"] == 48
    assert found["long_ms"] < 2000


def test_the_timeline_zooms_and_its_table_is_the_metrics(flow, server):
    assert flow("timeline", server.url, **vars(server.runs))["rows"] == 4


def test_runs_are_searched_described_archived_compared_and_prepared(flow, server):
    log = server.root / server.runs.plain / "logs" / "driver.log"
    assert flow("runs", server.url, log=str(log), **vars(server.runs))["runs"] == 5


def test_a_phone_shows_everything_without_scrolling_sideways(flow, server):
    assert flow("phone", server.url, run=server.runs.mixed)["pages"] == 10


def test_without_a_run_every_page_says_what_to_type(flow, browser_tools, tmp_path):
    served = Server(tmp_path / "nothing").start()
    try:
        assert flow("empty", served.url)["fine"]
    finally:
        served.stop()


def test_with_a_token_a_browser_logs_in_once(flow, server):
    served = Server(server.root, TELESCOPE_TOKEN="a-long-secret").start()
    try:
        assert flow("login", served.url, token="a-long-secret")["fine"]
    finally:
        served.stop()


def test_a_growing_run_is_followed_and_a_lost_server_is_said_and_recovered_from(browser_tools, tmp_path):
    run_dir = builders.write_run(tmp_path, name="live", steps=8, groups=2, state="running", seed=9, nan_at=None)
    served = Server(tmp_path).start()
    done = threading.Event()
    growing = threading.Thread(target=grow, args=(run_dir, done))
    growing.start()
    try:
        follow(browser_tools, served, run_dir.name)
    finally:
        done.set()
        growing.join()
        served.stop()


def grow(run_dir, done):
    """One step a second, as a second attempt of the run."""
    writer = builders.Writer(run_dir, random.Random(1), builders.START, 2, 8, 2, 4, ("sums",), 400)
    step = 8
    while not done.wait(1.0) and step < 300:
        step += 1
        writer.write(step, 5, None)
    writer.core.close("running")


def follow(tools, served, run_id):
    environment = os.environ | {
        "NODE_PATH": str(tools.modules), "CHROMIUM": tools.chromium, "SHOTS": str(SHOTS), "BASE": served.url,
        "FACTS": json.dumps({"run": run_id}),
    }  # fmt: skip
    command = ["node", str(HERE / "flows" / "live.js")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = []
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if line.strip() == "STOP":
            served.stop()
        elif line.strip() == "START":
            time.sleep(1)
            served.start()
    assert process.wait(60) == 0, "".join(said)[-4000:]
    process.stdout.close()
    process.stderr.close()
