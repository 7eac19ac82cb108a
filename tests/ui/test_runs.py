"""Runs, their logs, what people say about them, layouts, and the form for a new run."""

import fcntl
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.metrics.builders import write_run
from ui import configs, kept
from ui.app import without_pages
from ui.shell import first_text, judged, started_run

HOME = "http://127.0.0.1"


@pytest.fixture
def client(root: Path):
    root.mkdir()
    with TestClient(without_pages(root, None), base_url=HOME) as client:
        yield client


@pytest.fixture
def run(root: Path) -> Path:
    return write_run(root, name="own", steps=3, groups=2, nan_at=None)


class OneJob:
    """Jobs with one run; stopping it takes effect."""

    id = "own"

    def __init__(self) -> None:
        self.state = "running"
        self.submitted = []

    def get(self, run_id):
        self.id = run_id
        return self

    def stop(self):
        self.state = "stopped"

    def resume(self, _run, overrides=()):
        if self.state != "stopped":
            raise ValueError("run 'own' is running; only an ended run can be resumed")
        self.state, self.overrides = "pending", overrides
        return self

    def status(self):
        return self.state

    def submit(self, config):
        self.submitted.append(config)
        return self


def test_runs_come_newest_first_with_their_reason_and_their_curve(dashboard, runs):
    rows = dashboard.get("/data/runs").json()["runs"]
    assert [row["id"] for row in rows] == [runs.failed, runs.mixed, runs.plain]
    assert rows[0]["reason"] == "the engine ended: out of memory"
    assert rows[2]["last_step"] == 12
    assert isinstance(rows[2]["created_at"], float)
    assert len(rows[2]["sparkline"]) > 5


def test_without_a_cluster_the_controls_say_what_to_type(dashboard, runs):
    assert "serve run app.serve:app" in dashboard.get("/data/runs").json()["controls"]["why"]
    answer = dashboard.post(f"/data/runs/{runs.plain}/stop")
    assert answer.status_code == 409
    assert "serve run" in answer.json()["detail"]


def test_a_stop_answers_with_the_state_that_was_reached_and_a_refusal_with_its_sentence(run):
    jobs = OneJob()
    with TestClient(without_pages(run.parent, jobs), base_url=HOME) as client:
        refused = client.post(f"/data/runs/{run.name}/resume")
        assert (refused.status_code, "only an ended run" in refused.json()["detail"]) == (409, True)
        assert client.post(f"/data/runs/{run.name}/stop").json() == {"id": run.name, "state": "stopped"}
        resumed = client.post(f"/data/runs/{run.name}/resume", json={"overrides": ["num_workers=2"]})
        assert (resumed.json()["state"], jobs.overrides) == ("pending", ["num_workers=2"])
        assert client.post(f"/data/runs/{run.name}/delete").status_code == 404


@pytest.mark.parametrize(
    ("said", "host", "asked", "state", "reason"),
    [
        ("running", socket.gethostname(), False, "failed", "its driver (pid 7) ended without saying why"),
        ("pending", socket.gethostname(), False, "failed", "its driver (pid 7) ended without saying why"),
        ("running", socket.gethostname(), True, "stopped", "stopped on request"),
        ("running", "elsewhere", False, "running", None),
    ],
)
def test_a_run_whose_driver_died_here_is_not_shown_as_running(client, run, said, host, asked, state, reason):
    def told():
        (row,) = client.get("/data/runs").json()["runs"]
        alone = client.get(f"/data/runs/{run.name}").json()["run"]
        (delta,) = client.get(f"/data/delta?c={run.name}:0::0").json()["runs"]
        assert (row["state"], row["reason"]) == (alone["state"], alone["reason"])
        assert (row["state"], row["phase"]) == (delta["state"], delta["phase"])
        assert (row["elapsed_s"] is None) == (alone["elapsed_s"] is None) == (row["state"] != said)
        return row["state"], row["reason"]

    of_driver = {"state": said, "ended_at": None, "pid": 7, "host": host, "stop_requested": asked}
    record = json.loads((run / "run.json").read_text()) | of_driver
    (run / "run.json").write_text(json.dumps(record))
    with (run / "writer.lock").open("w") as driver:
        fcntl.flock(driver, fcntl.LOCK_EX)
        assert told() == (said, None)
    assert told() == (state, reason)
    assert json.loads((run / "run.json").read_text()) == record


def test_a_run_without_a_checkpoint_can_be_resumed_only_if_it_was_to_write_some(run):
    def resumable():
        with TestClient(without_pages(run.parent, None), base_url=HOME) as client:
            return client.get("/data/runs").json()["runs"][0]["resumable"]

    (run / "config.yaml").write_text("checkpoint_every: 0\n")
    assert resumable() is False
    (run / "config.yaml").write_text("checkpoint_every: 5\n")
    assert resumable() is True
    (run / "config.yaml").write_text("checkpoint_every: 0\n")
    (run / "checkpoints" / "step_2").mkdir(parents=True)
    (run / "checkpoints" / "step_2" / "place.json").write_text("{}")
    assert resumable() is True


def test_one_run_has_its_config_and_every_self_check(dashboard, runs):
    found = dashboard.get(f"/data/runs/{runs.plain}").json()
    assert "algorithm: grpo" in found["config"]
    by_name = {check["check"]: check for check in found["checks"]}
    assert by_name["finite_values"]["last_failed_step"] == 7
    assert by_name["ledger_balance"]["failures"] == 0


def test_values_that_cannot_be_read_are_said_on_the_page_of_the_run(tmp_path):
    run = write_run(tmp_path, steps=4)

    def unreadable():
        with TestClient(without_pages(tmp_path, None), base_url=HOME) as client:
            checks = client.get(f"/data/runs/{run.name}").json()["checks"]
        return [check for check in checks if check["check"] == "unreadable_files"]

    assert unreadable() == []
    segment = next((run / "metrics" / "series").glob("*.parquet"))
    segment.write_bytes(b"x" * segment.stat().st_size)
    [said] = unreadable()
    assert not said["ok"]
    assert segment.name in said["message"]


def test_two_runs_are_compared_key_by_key(dashboard, runs):
    found = dashboard.get("/data/compare", params={"left": runs.plain, "right": runs.failed}).json()
    assert {"key": "steps", "left": 12, "right": 8, "absent": None} in found["config"]
    assert found["versions"] == []


def test_a_log_is_followed_by_byte_and_survives_bytes_that_are_not_text(client, run):
    log = run / "logs" / "driver.log"
    log.write_bytes("größe 🎯\n".encode() + b"\xff\xfe\n")
    first = client.get("/data/logs", params={"run": run.name}).json()
    assert first["text"].startswith("größe 🎯\n")
    with log.open("ab") as file:
        file.write(b"more\n")
    assert client.get("/data/logs", params={"run": run.name, "after": first["end"]}).json()["text"] == "more\n"


def test_what_a_running_driver_prints_is_followed_before_it_is_a_file(run):
    class Printing(OneJob):
        printed = "step 1\n"
        now = "running"

        def record(self):
            return {"state": self.now, "job_id": "job", "attempt": 2}

        def logs(self):
            return self.printed

    jobs = Printing()
    (run / "logs" / "job-1.log").write_text("the first attempt\n")
    with TestClient(without_pages(run.parent, jobs), base_url=HOME) as client:
        first = client.get("/data/logs", params={"run": run.name}).json()
        assert (first["names"], first["text"]) == (["job-2.log", "job-1.log", "driver.log"], "step 1\n")
        jobs.printed += "step 2\n"
        more = {"run": run.name, "name": "job-2.log", "after": first["end"]}
        assert client.get("/data/logs", params=more).json()["text"] == "step 2\n"
        jobs.now = "finished"
        assert client.get("/data/logs", params={"run": run.name}).json()["text"] == "the first attempt\n"


def test_a_log_that_is_a_link_out_of_the_run_is_not_there(client, run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    (run / "logs" / "evil.log").symlink_to(secret)
    assert "evil.log" not in client.get("/data/logs", params={"run": run.name}).json()["names"]
    for name in ("evil.log", "../config.yaml", "../../secret", "%2e%2e/config.yaml", "/etc/passwd"):
        answer = client.get("/data/logs", params={"run": run.name, "name": name})
        assert answer.status_code == 404
        assert "s3cret" not in answer.text


def test_a_run_that_is_a_link_out_of_the_root_is_not_there(client, run, root, tmp_path):
    outside = write_run(tmp_path / "elsewhere", name="outside", steps=2, groups=2, nan_at=None)
    (root / "link").symlink_to(outside)
    assert client.get("/data/series", params={"run": "link"}).status_code == 404


def test_what_people_say_about_a_run_is_kept_and_checked(client, run):
    said = {"label": "Baseline <b>", "tags": ["a", "b"], "archived": True, "color": 3, "notes": "it works"}
    assert client.put(f"/data/about/{run.name}", json=said).status_code == 200
    row = client.get("/data/runs").json()["runs"][0]
    assert {key: row[key] for key in said} == said
    assert json.loads((run / "run.json").read_text())["archived"] is False
    for wrong in ({"state": "finished"}, {"label": 5}, {"tags": "a"}, {"color": 99}, {"archived": "yes"}):
        assert client.put(f"/data/about/{run.name}", json=wrong).status_code == 400


LAYOUT = {"sections": [{"id": "a", "title": "A", "groups": [{"id": "g", "charts": [{"id": "c", "keys": ["reward"]}]}]}]}


def test_a_layout_is_versioned_and_a_stale_save_is_a_conflict(client):
    assert client.get("/data/layouts/default").json() == {"name": "default", "version": 0, "layout": None}
    assert client.put("/data/layouts/default", json={"version": 0, "layout": LAYOUT}).json()["version"] == 1
    stale = client.put("/data/layouts/default", json={"version": 0, "layout": {"sections": []}})
    assert (stale.status_code, stale.json()["version"], stale.json()["layout"]) == (409, 1, LAYOUT)


def test_a_layout_outlives_the_server(client, root):
    client.put("/data/layouts/mine", json={"version": 0, "layout": LAYOUT})
    client.put("/data/layouts/mine", json={"version": 1, "layout": {"sections": []}})
    with TestClient(without_pages(root, None), base_url="http://127.0.0.1") as restarted:
        assert restarted.get("/data/layouts/mine").json()["version"] == 2
        assert restarted.post("/data/layouts/mine/undo").json()["layout"] == LAYOUT


@pytest.mark.parametrize(
    ("address", "file", "body"),
    [("layouts/x", "layouts", {"version": 0, "layout": LAYOUT}), ("about/{}", "about", {"notes": "x"})],
)
def test_a_file_that_another_server_holds_delays_no_page(client, root, run, monkeypatch, address, file, body):
    (root / ".telescope").mkdir()
    url = f"/data/{address.format(run.name)}"
    with (root / ".telescope" / f"{file}.lock").open("w") as other, ThreadPoolExecutor() as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = pool.submit(client.put, url, json=body)
        time.sleep(0.3)
        assert client.get("/data/layouts").status_code == 200
        assert not waiting.done()
        monkeypatch.setattr(kept, "LOCK_TIMEOUT_S", 0.1)
        refused = client.put(url, json=body)
        fcntl.flock(other, fcntl.LOCK_UN)
        assert waiting.result(timeout=10).status_code == 200
    assert refused.status_code == 503
    assert refused.json()["detail"] == f"{file}.json: another server has been changing it for 0.1 s; try again"


def test_a_layout_keeps_fields_that_are_not_known(client):
    layout = LAYOUT | {"theme": {"later": True}}
    client.put("/data/layouts/x", json={"version": 0, "layout": layout})
    assert client.get("/data/layouts/x").json()["layout"] == layout


def test_undo_and_redo_are_new_versions(client):
    client.put("/data/layouts/x", json={"version": 0, "layout": LAYOUT})
    client.put("/data/layouts/x", json={"version": 1, "layout": {"sections": []}})
    undone = client.post("/data/layouts/x/undo").json()
    assert (undone["version"], undone["layout"], undone["can_redo"]) == (3, LAYOUT, True)
    assert client.post("/data/layouts/x/redo").json()["layout"] == {"sections": []}
    assert client.post("/data/layouts/x/redo").status_code == 409


@pytest.mark.parametrize(
    "body", ["[1]", "{", '{"version": 0}', '{"version": 0, "layout": {"sections": 1}}', "[" * 99999]
)
def test_a_layout_that_is_none_is_refused(client, body):
    answer = client.put("/data/layouts/x", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize("name", [" x", "x" * 81, "a%09b"])
def test_a_layout_name_must_be_printable(client, name):
    assert client.put(f"/data/layouts/{name}", json={"version": 0, "layout": LAYOUT}).status_code in (400, 404)


def test_every_shipped_config_can_be_chosen_and_is_valid():
    assert "demo.yaml" in configs.names()
    assert "serve.yaml" not in configs.names()
    for name in configs.names():
        assert 'class="verdict good"' in judged(configs.text_of(name), can_start=True), name


def test_a_config_is_judged_by_key_and_shows_its_difference_from_the_defaults():
    text = configs.text_of("demo.yaml")
    wrong = judged(text + "\ngroup_sise: 4\n", can_start=True)
    assert "group_sise" in wrong
    assert "group_size" in wrong
    fine = judged(text, can_start=True)
    assert "<td>learning_rate</td>" in fine
    assert "<td>environments.0.name</td>" in fine
    assert "environments.0.kwargs" not in fine


def test_a_duplicate_begins_with_the_text_of_its_run_or_says_why_there_is_none(run, root, tmp_path):
    assert first_text(root, {"from": run.name})[1].startswith("name: own\n")
    (run / "config.yaml").write_bytes(b"name: \xff\n")
    assert first_text(root, {"from": run.name})[1] == "name: \ufffd\n"
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to("/etc/hostname")
    for wanted in (run.name, "nope", "../../etc", "x" * 300):
        name, text = first_text(root, {"from": wanted})
        assert (name, all(line.startswith("#") for line in text.splitlines())) == (None, True)


def test_a_hostile_config_comes_back_escaped():
    page = judged("<script>alert(1)</script>: <img src=x onerror=alert(1)>\n", can_start=True)
    assert "<script>" not in page
    assert "<img" not in page


def test_a_run_is_started_from_a_checked_config_and_from_nothing_else():
    jobs = OneJob()
    page, run_id = started_run(jobs, "name: x\nsteps: -1\n")
    assert (run_id, jobs.submitted, "Not started" in page) == ("", [], True)
    page, run_id = started_run(jobs, "x: !!python/object/apply:os.system ['touch pwned']\n")
    assert (run_id, jobs.submitted) == ("", [])
    _, run_id = started_run(jobs, configs.text_of("demo.yaml"))
    assert run_id == "own"
    assert jobs.submitted[0].steps == configs.resolved(configs.text_of("demo.yaml")).steps
