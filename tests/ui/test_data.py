"""The data API: strict JSON, cursors, thinning, late values, and names that try to get out."""

import csv
import io
import json
import math
import struct

import numpy as np
import orjson
import polars as pl
import pytest
from fastapi.testclient import TestClient

from metrics import read
from metrics.export import csv_text
from tests.browser.runs import write_history
from tests.ui.conftest import HOME
from ui.app import without_pages
from ui.data import merged_catalog
from ui.history import History, _grid, _thin
from ui.names import is_plain
from ui.sections import in_order, placed


def strict(text: str):
    """Refuses NaN and Infinity, which Python's reader would let through."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def unpacked(body: bytes) -> tuple[dict, np.ndarray, np.ndarray]:
    size = struct.unpack("<I", body[:4])[0]
    head = orjson.loads(body[4 : 4 + size])
    rows, at = head["rows"], 4 + size
    steps = np.frombuffer(body, "<f8", rows, at)
    kind = "<f8" if head["type"] == "f64" else "<f4"
    return head, steps, np.frombuffer(body, kind, rows * len(head["keys"]), at + 16 * rows).reshape(-1, rows)


def test_every_json_answer_is_strict_although_a_metric_is_nan(dashboard, runs):
    run = f"run={runs.plain}"
    for path in ("runs", f"catalog?runs={runs.plain}", f"series?{run}", f"groups?{run}&step=7", f"runs/{runs.plain}"):
        answer = dashboard.get(f"/data/{path}")
        assert answer.status_code == 200, path
        strict(answer.text)


def test_a_nan_is_listed_beside_its_column_and_the_other_metrics_are_whole(dashboard, runs):
    series = dashboard.get("/data/series", params={"run": runs.plain, "keys": "grad_norm\nentropy"}).json()
    at = series["steps"].index(7)
    assert series["nonfinite"] == {"grad_norm": [[7, "nan"]]}
    assert series["columns"]["grad_norm"][at] is None
    assert series["columns"]["entropy"][at] == pytest.approx(1.5 * (1 - 0.8 * (0.1 + 0.9 * 7 / 12)))


def test_the_binary_form_of_a_series_holds_the_same_numbers(dashboard, runs):
    params = {"run": runs.plain, "keys": "reward_mean\nentropy"}
    plain = dashboard.get("/data/series", params=params).json()
    head, steps, columns = unpacked(dashboard.get("/data/series", params=params | {"fmt": "f32"}).content)
    assert head["keys"] == ["reward_mean", "entropy"]
    assert steps.tolist() == plain["steps"]
    expected = [math.nan if value is None else value for value in plain["columns"]["reward_mean"]]
    np.testing.assert_allclose(columns[0], expected, rtol=1e-6)


def test_a_delta_sends_only_the_rows_after_the_cursor_and_names_each_key_once(dashboard, runs):
    first = dashboard.get(f"/data/delta?c={runs.plain}:0::0").json()["runs"][0]
    assert (first["reset"], first["steps"], first["last_step"]) == (True, [], 12)
    cursor = f"{runs.plain}:11:{first['rev']}:{first['num_keys']}"
    delta = dashboard.get(f"/data/delta?c={cursor}").json()["runs"][0]
    assert (delta["reset"], delta["steps"], delta["new_keys"], delta["state"]) == (False, [12], [], "finished")
    at = str(first["new_keys"].index("learning_rate"))
    assert delta["columns"][at] == [1e-4]


def test_a_delta_of_one_step_of_a_hundred_columns_is_small(dashboard, runs):
    found = dashboard.get(f"/data/delta?c={runs.mixed}:0::0").json()["runs"][0]
    body = dashboard.get(f"/data/delta?c={runs.mixed}:13:{found['rev']}:{found['num_keys']}").content
    columns = len(strict(body.decode())["runs"][0]["columns"])
    assert columns > 100
    assert len(body) / columns < 40


def test_a_delta_says_what_the_start_of_a_run_is_doing(tmp_path):
    run_dir = write_history(tmp_path, "young", 1, 10, state="starting")
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"phase": "starting the engines"}))
    with TestClient(without_pages(tmp_path, None), base_url=HOME) as client:
        (found,) = client.get(f"/data/delta?c={run_dir.name}:0::0").json()["runs"]
        (row,) = client.get("/data/runs").json()["runs"]
    for said in (found, row):
        assert (said["state"], said["phase"]) == ("starting", "starting the engines")


def test_only_the_asked_keys_come_with_a_delta(dashboard, runs):
    found = dashboard.get(f"/data/delta?c={runs.plain}:0::0").json()["runs"][0]
    delta = dashboard.get("/data/delta", params={"c": f"{runs.plain}:10:{found['rev']}:0", "keys": "entropy"}).json()
    assert len(delta["runs"][0]["columns"]) == 1


def test_a_resumed_run_shows_its_attempts(dashboard, runs):
    series = dashboard.get("/data/series", params={"run": runs.mixed, "keys": "entropy"}).json()
    assert series["attempts"] == [{"attempt": 1, "first_step": 1}, {"attempt": 2, "first_step": 9}]
    assert [step for step in series["steps"] if step] == list(range(1, 15))


def test_a_value_that_arrives_after_its_step_is_sent_once(monkeypatch, tmp_path):
    answers = [
        {"rev": 1, "steps": [1, 2], "times": [1.0, 2.0], "columns": {"loss": [3.0, 2.0]}, "late": {}},
        {"rev": 1, "steps": [], "times": [], "columns": {}, "late": {"eval/reward_mean": [[2, 0.5]]}},
        {"rev": 1, "steps": [], "times": [], "columns": {}, "late": {"eval/reward_mean": [[2, 0.5]]}},
    ]
    stamps = iter(range(9))
    monkeypatch.setattr("ui.history.changed_at", lambda _dir: next(stamps))
    monkeypatch.setattr(read, "series", lambda *_a, **_k: {"attempts": [], "nonfinite": {}, **answers.pop(0)})
    history = History(tmp_path)
    history.refresh()
    seen = history.rev
    history.refresh()
    delta = history.delta(2, seen)
    assert (delta["steps"], delta["columns"]) == ([2], {"0": [2.0], "1": [0.5]})
    seen = history.rev
    history.refresh()
    assert history.rev == seen
    assert history.delta(2, seen)["steps"] == []


def test_thinning_keeps_every_extreme_and_never_moves_an_old_bucket():
    steps = np.arange(1, 5001)
    values = np.zeros((5000, 1))
    values[2500], values[3333] = 9.0, -9.0
    bucket, thin_to = _grid(steps, 2000)
    assert (bucket, thin_to) == (8, 4999)
    x, _, table = _thin(steps[:4999], steps[:4999].astype(float), values[:4999], bucket)
    assert (table.max(), table.min()) == (9.0, -9.0)
    assert np.all(np.diff(x) > 0)
    later, _, _ = _thin(np.arange(1, 6001)[:5999], np.arange(5999.0), np.zeros((5999, 1)), bucket)
    assert later[: len(x)].tolist() == x.tolist()


def test_a_bucket_without_values_stays_absent():
    table = np.array([[np.nan], [np.nan], [1.0], [2.0]])
    _, _, thinned = _thin(np.arange(4), np.arange(4.0), table, 2)
    assert np.isnan(thinned[:3]).all()
    assert thinned[3:, 0].tolist() == [1.0, 2.0, 2.0]


def test_ranges_of_two_runs_are_kept_by_run_and_gini_gets_a_chart_of_its_own(runs):
    entries = {entry["key"]: entry for entry in merged_catalog(runs.root, [runs.plain, runs.mixed])}
    assert entries["reward"]["ranges"] == {runs.plain: (0.0, 1.0), runs.mixed: (0.0, 1.0)} or entries["reward"][
        "ranges"
    ] == {runs.plain: [0.0, 1.0], runs.mixed: [0.0, 1.0]}
    assert entries["sums/tries"]["invert"] is True
    assert entries["correct_gini_mean"]["kind"] == "scalar"
    assert {entry["section"] for entry in entries.values()} >= {"General", "Reward", "Rollouts", "Discarded", "Evals"}


def test_metrics_that_belong_together_share_a_section(runs):
    entries = {entry["key"]: entry for entry in merged_catalog(runs.root, [runs.mixed])}
    place = {key: (entry["section"], entry["group"], entry["name"]) for key, entry in entries.items()}
    assert place["loss/policy"] == ("Training", "", "loss policy")
    assert place["tokens/trained"] == ("Throughput", "", "tokens trained")
    assert place["sums/tries"] == ("Sample metrics", "sums", "tries")
    sections = list(dict.fromkeys(entry["section"] for entry in entries.values()))
    assert sections[:3] == ["General", "Reward", "Sample metrics"]
    assert place["advantage"] == ("Reward", "", "advantage")
    assert sections.index("Training") < sections.index("Timeline")


def test_sections_of_a_trainer_of_ones_own_come_last():
    own = {"key": "mine/x", "section": "mine", "group": "", "name": "x"}
    timing = {"key": "timing_step_total", "section": "Timeline", "group": "", "name": "timing_step_total"}
    assert in_order([placed(own, {"sums"}), placed(timing, {"sums"})]) == [timing, own]


def test_the_catalog_is_not_sent_twice(dashboard, runs):
    first = dashboard.get(f"/data/catalog?runs={runs.plain}")
    again = dashboard.get(f"/data/catalog?runs={runs.plain}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_an_exported_csv_holds_full_columns_and_cannot_become_a_formula(dashboard, runs):
    body = dashboard.get("/data/export", params={"runs": f"{runs.plain},{runs.failed}", "keys": "entropy"}).text
    rows = list(csv.DictReader(io.StringIO(body)))
    assert len([row for row in rows if row["run"] == runs.plain and row["entropy"]]) == 12
    assert csv_text(pl.DataFrame({"=1+1": ["@SUM(A1)"]})) == "'=1+1\n'@SUM(A1)\n"


def test_an_exported_nan_is_a_nan_and_an_absent_value_is_empty(dashboard, runs):
    params = {"runs": runs.plain, "keys": "grad_norm", "fmt": "parquet"}
    frame = pl.read_parquet(dashboard.get("/data/export", params=params).content)
    by_step = dict(frame.select("step", "grad_norm").rows())
    assert math.isnan(by_step[7])
    assert by_step[0] is None


@pytest.mark.parametrize(
    ("query", "formats"),
    [("export?runs={run}&fmt=exe", "csv, parquet"), ("series?run={run}&fmt=f64", "json, f32")],
)
def test_a_format_that_is_none_is_refused_with_those_there_are(dashboard, runs, query, formats):
    answer = dashboard.get(f"/data/{query.format(run=runs.plain)}")
    assert answer.status_code == 400
    assert answer.json()["detail"].endswith(f": one of {formats}")


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("DELETE", "/data/runs", 405, "GET"),
        ("GET", "/data/layouts/default/undo", 405, "POST"),
        ("POST", "/api/openapi.json", 405, "GET, HEAD"),
        ("GET", "/api/nothing", 404, None),
        ("POST", "/data/nothing", 404, None),
    ],
)
def test_a_wrong_method_is_told_the_right_one_although_the_pages_answer_every_address(
    pages, method, path, status, allowed
):
    answer = pages.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allowed)
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    "name", ["../x", "a/../../b", "/etc/x", "a\\..\\b", "..", ".", "", "con", "x" * 300, "a\x00b", "a\n", "-x"]
)
def test_a_name_that_could_leave_the_folder_is_refused(dashboard, name):
    assert not is_plain(name)
    assert dashboard.get("/data/series", params={"run": name}).status_code in (400, 404, 422)
    assert dashboard.get("/data/logs", params={"run": name}).status_code in (400, 404, 422)


def test_a_name_with_dots_inside_is_fine():
    assert is_plain("ok..name")


@pytest.mark.parametrize("query", ["c=own:x", "c=own:-1:1.0:0", "c=%2e%2e:0::0"])
def test_a_bad_cursor_is_refused_and_says_why(dashboard, query):
    answer = dashboard.get(f"/data/delta?{query}")
    assert answer.status_code in (400, 404)
    assert answer.json()["detail"]


def test_a_run_of_no_step_and_a_root_of_no_run(root, tmp_path):
    from fastapi.testclient import TestClient

    from ui.app import without_pages

    (root / "empty-20260101-000000-0001" / "metrics").mkdir(parents=True)
    (root / "empty-20260101-000000-0001" / "run.json").write_text('{"state": "pending", "name": "empty"}')
    with TestClient(without_pages(root, None), base_url="http://127.0.0.1") as client:
        rows = client.get("/data/runs").json()["runs"]
        assert [(row["id"], row["last_step"], row["sparkline"]) for row in rows] == [
            ("empty-20260101-000000-0001", None, [])
        ]
        series = client.get("/data/series", params={"run": "empty-20260101-000000-0001"}).json()
        assert (series["steps"], series["last_step"]) == ([], 0)
        assert client.get("/data/catalog?runs=empty-20260101-000000-0001").json() == {"metrics": []}
    with TestClient(without_pages(tmp_path / "nothing", None), base_url="http://127.0.0.1") as client:
        assert client.get("/data/runs").json()["runs"] == []
