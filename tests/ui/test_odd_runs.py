"""Runs, requests and kept files that are damaged, hostile, gone or forbidden: a sentence, and never a traceback."""

import asyncio
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.requests import Request

from tests.metrics.builders import write_run
from ui.__main__ import main
from ui.app import _unreadable, without_pages

HOME = "http://127.0.0.1"


@contextmanager
def serving(root: Path) -> Iterator[TestClient]:
    """A server that lets an unexpected error become the 500 that a browser would get."""
    with TestClient(without_pages(root, None), base_url=HOME, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    root.mkdir()
    with serving(root) as client:
        yield client


@pytest.fixture
def run(root: Path) -> Path:
    return write_run(root, name="own", steps=3, groups=2, nan_at=None)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything, so a test of permissions has to be somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


BROKEN = {
    "not yaml": "a: [1, 2\n",
    "a key twice": "a: 1\na: 2\n",
    "a list": "- 1\n",
    "a tag": "a: !!python/object/apply:os.system ['touch pwned']\n",
    "aliases that multiply": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "deep": "a: " + "[" * 5000 + "\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_config_of_one_run_is_named_and_the_others_are_filtered(client, root, run, text):
    other = write_run(root, name="other", steps=2, groups=2, nan_at=None)
    (run / "config.yaml").write_text(text)
    found = client.get("/data/configs").json()
    assert found["configs"][other.name]["steps"] == 2
    assert "config.yaml" in found["unreadable"][run.name]
    assert str(root) not in found["unreadable"][run.name]
    compared = client.get("/data/compare", params={"left": run.name, "right": other.name}).json()
    assert run.name in compared["problems"][0]
    assert client.get(f"/data/runs/{run.name}").json()["config"] == text


def test_a_config_that_is_not_utf8_is_named(client, run):
    (run / "config.yaml").write_bytes(b"name: \xff\n")
    assert "not UTF-8" in client.get("/data/configs").json()["unreadable"][run.name]


ODD_RECORDS = [
    [],
    [{"state": "running"}],
    "text",
    {},
    {"state": 5, "environments": 7, "tags": "a", "notes": 3, "versions": [], "steps": "many", "attempt": None},
    {"state": "running", "created_at": 1e300, "started_at": "yesterday", "environments": [None, {"name": 3}, [1]]},
    {"state": "running", "created_at": True, "archived": "yes", "versions": {"a": {"b": 1}}, "tags": [1, "ok", None]},
    {"state": "running", "id": "../../etc", "name": ["<b>"], "label": "mine", "root": "/"},
]


@pytest.mark.parametrize("record", ODD_RECORDS, ids=range(len(ODD_RECORDS)))
def test_an_odd_record_of_one_run_leaves_the_list_and_the_comparison_whole(client, root, run, record):
    other = write_run(root, name="other", steps=2, groups=2, nan_at=None)
    (run / "run.json").write_text(json.dumps(record))
    rows = {row["id"]: row for row in client.get("/data/runs").json()["runs"]}
    assert rows.keys() == {run.name, other.name}
    row = rows[run.name]
    assert isinstance(row["state"], str)
    assert isinstance(row["notes"], str)
    assert all(isinstance(one, str) for one in [*row["environments"], *row["tags"], *row["versions"].values()])
    assert client.get(f"/data/runs/{run.name}").status_code == 200
    compared = client.get("/data/compare", params={"left": run.name, "right": other.name})
    assert {item["key"] for item in compared.json()["versions"]} >= {"telescope"}


def test_only_directories_with_a_plain_name_and_record_are_runs(client, root, run, tmp_path):
    outside = write_run(tmp_path / "elsewhere", name="outside", steps=2, groups=2, nan_at=None)
    (root / "link").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "dangling").symlink_to(root / "nothing")
    for name in ("two words", "back\\slash", "new\nline", "con"):
        shutil.copytree(run, root / name)
    linked = root / "linked-record"
    linked.mkdir()
    (linked / "run.json").symlink_to(outside / "run.json")
    (root / "file").write_text("no run")
    assert [row["id"] for row in client.get("/data/runs").json()["runs"]] == [run.name]
    for name in ("link", "linked-record", "loop", "dangling", "file"):
        assert client.get(f"/data/runs/{name}").status_code == 404, name


def test_a_config_that_is_a_link_is_not_followed(client, run, tmp_path):
    secret = tmp_path / "secret.yaml"
    secret.write_text("password: s3cret\n")
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(secret)
    for path in (f"runs/{run.name}", "configs", f"compare?left={run.name}&right={run.name}"):
        answer = client.get(f"/data/{path}")
        assert (answer.status_code, "s3cret" in answer.text) == (200, False), path


def test_a_run_that_was_removed_is_told_and_the_others_go_on(client, root, run):
    other = write_run(root, name="other", steps=2, groups=2, nan_at=None)
    cursors = f"{run.name}:0::0,{other.name}:0::0"
    assert [part.get("gone") for part in client.get(f"/data/delta?c={cursors}").json()["runs"]] == [None, None]
    shutil.rmtree(run)
    parts = client.get(f"/data/delta?c={cursors}").json()["runs"]
    assert [(part["run"], part.get("gone")) for part in parts] == [(run.name, True), (other.name, None)]
    assert client.get(f"/data/catalog?runs={run.name},{other.name}").json()["metrics"] != []
    assert [row["id"] for row in client.get("/data/runs").json()["runs"]] == [other.name]
    for path in ("series?run=", "groups?step=1&run=", "timeline?from=1&to=1&run=", "logs?run=", "bias?run="):
        assert client.get(f"/data/{path}{run.name}").status_code == 404, path


def test_a_run_without_its_metrics_is_a_run_of_no_step(client, run):
    assert client.get(f"/data/series?run={run.name}").json()["last_step"] == 3
    shutil.rmtree(run / "metrics")
    assert client.get(f"/data/series?run={run.name}").json()["last_step"] == 0
    for path in ("groups?step=1&run=", "timeline?from=1&to=1&run=", "catalog?runs=", "bias?run=", "runs/"):
        assert client.get(f"/data/{path}{run.name}").status_code == 200, path


@pytest.mark.parametrize("forbidden", [".", "run.json", "metrics/series"])
def test_a_run_that_may_not_be_read_says_so_and_the_others_are_listed(forbidden):
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        fine = write_run(root, name="fine", steps=2, groups=2, nan_at=None)
        with serving(root) as client:
            client.get("/data/runs")  # what is imported on first use is read as root
        closed = write_run(root, name="closed", steps=2, groups=2, nan_at=None)
        (closed / forbidden).chmod(0)
        with serving(root) as client, as_nobody():
            rows = {row["id"]: row for row in client.get("/data/runs").json()["runs"]}
            answer = client.get(f"/data/series?run={closed.name}")
            assert client.get(f"/data/series?run={fine.name}").status_code == 200
        (closed / forbidden).chmod(0o755)
    finally:
        shutil.rmtree(root)
    assert (rows[closed.name]["state"], rows[fine.name]["state"]) == ("unreadable", "finished")
    assert "Permission denied" in rows[closed.name]["reason"]
    if forbidden != "run.json":
        assert (answer.status_code, "may not read" in answer.json()["detail"]) == (403, True)


@pytest.mark.parametrize(("number", "status"), [(errno.EROFS, 403), (errno.EACCES, 403), (errno.EIO, 500)])
def test_what_cannot_be_written_is_refused_and_what_is_broken_is_an_error(number, status):
    failed = OSError(number, os.strerror(number), "layout.json")
    answer = asyncio.run(_unreadable(Request({"type": "http"}), failed))
    assert (answer.status_code, b"layout.json" in bytes(answer.body)) == (status, True)


DAMAGED = ['{"a": ', "[1]", "3", "\ud83d", "[" * 99999]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_notes_are_said_left_alone_and_do_not_hide_the_runs(client, root, run, text):
    file = root / ".telescope" / "about.json"
    file.parent.mkdir()
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    found = client.get("/data/runs").json()
    assert [row["id"] for row in found["runs"]] == [run.name]
    assert "about.json" in found["problems"][0]
    assert client.put(f"/data/about/{run.name}", json={"notes": "x"}).status_code == 409
    assert file.read_bytes() == text.encode("utf-8", "surrogatepass")


def test_with_a_damaged_tokenizer_tokens_are_shown_by_number(client, run):
    (run / "tokenizer.json").write_text('{"model": 3}')
    page = client.get(f"/data/groups?run={run.name}&step=1").json()
    chosen = page["groups"][0]["samples"][0]["sample_id"]
    sample = client.get(f"/data/sample?run={run.name}&step=1&sample_id={chosen}").json()
    assert sample["pieces"] is None
    assert len(sample["token_ids"]) == sample["completion_tokens"]


def test_what_was_said_cannot_change_what_is_true(client, root, run):
    file = root / ".telescope" / "about.json"
    file.parent.mkdir()
    said = {"id": "other", "state": "finished", "last_step": 99, "tags": "x", "color": 99, "label": "mine"}
    file.write_text(json.dumps({run.name: said, "gone": 3}))
    row = client.get("/data/runs").json()["runs"][0]
    assert (row["id"], row["last_step"], row["tags"], row["label"], "color" in row) == (run.name, 3, [], "mine", False)


@pytest.mark.parametrize(
    "layout",
    [
        3,
        {"sections": [3]},
        {"sections": [{"groups": 3}]},
        {"sections": [{"groups": [{"charts": [3]}]}]},
        {"sections": [{"groups": [{"charts": [{"keys": [3]}]}]}]},
        {"sections": [{}]},
    ],
)
def test_a_layout_of_another_shape_is_refused_by_its_place(client, layout):
    answer = client.put("/data/layouts/x", json={"version": 0, "layout": layout})
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("layout")
    assert client.get("/data/layouts").json() == {"layouts": []}


def test_a_layout_that_was_damaged_on_disk_counts_as_not_there(client, root):
    good = {"version": 2, "layout": {"sections": []}, "undo": [], "redo": []}
    kept = {"bad": {"version": 1, "layout": {"sections": [3]}, "undo": [], "redo": []}, "worse": 3, "good": good}
    (root / ".telescope").mkdir()
    (root / ".telescope" / "layouts.json").write_text(json.dumps(kept))
    assert [one["name"] for one in client.get("/data/layouts").json()["layouts"]] == ["good"]
    assert client.get("/data/layouts/bad").json() == {"name": "bad", "version": 0, "layout": None}
    assert client.post("/data/layouts/worse/undo").status_code == 409
    saved = client.put("/data/layouts/bad", json={"version": 0, "layout": {"sections": []}})
    assert saved.json()["version"] == 1


@pytest.mark.parametrize("said", [{"notes": "\ud83d"}, {"tags": ["\udc00"]}, {"label": "a\ud800b"}])
def test_half_a_character_is_refused_and_nothing_is_lost(client, run, said):
    client.put(f"/data/about/{run.name}", json={"label": "kept"})
    answer = client.put(f"/data/about/{run.name}", content=json.dumps(said))
    assert answer.status_code == 400
    assert "half of a character" in answer.json()["detail"]
    assert client.get("/data/runs").json()["runs"][0]["label"] == "kept"


def test_half_a_character_in_a_layout_is_refused(client):
    layout = {"sections": [{"title": "\ud83d", "groups": []}]}
    answer = client.put("/data/layouts/x", content=json.dumps({"version": 0, "layout": layout}))
    assert (answer.status_code, "half of a character" in answer.json()["detail"]) == (400, True)


ODD_NUMBERS = ["²", "٣", "1" * 5000, "-1", "1e3", " 1", "0x1"]


@pytest.mark.parametrize("number", ODD_NUMBERS, ids=range(len(ODD_NUMBERS)))
def test_a_cursor_holds_plain_digits(client, run, number):
    refused = client.get("/data/delta", params={"c": f"{run.name}:{number}:1.0:0"})
    assert (refused.status_code, "is wanted" in refused.json()["detail"]) == (400, True)
    for cursor in (f"{run.name}:1:1.{number}:0", f"{run.name}:1:1.0:{number}"):
        assert client.get("/data/delta", params={"c": cursor}).status_code == 200
    for grid in (f"{number}:1", f"1:-{number}"):
        if number != "-1":
            assert client.get("/data/series", params={"run": run.name, "grid": grid}).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        "series?from=9999999999999999999",
        "series?to=9999999999999999999",
        "groups?step=99999999999999999999",
        "groups?step=1&shortest=99999999999999999999999",
        "groups?step=1&low=nan",
        "groups?step=1&high=inf",
        "sample?step=1&sample_id=99999999999999999999999",
        "timeline?from=99999999999999999999&to=99999999999999999999",
        "logs?after=99999999999999999999999",
    ],
)
def test_a_number_beyond_every_run_is_refused(client, run, query):
    path, _, values = query.partition("?")
    assert client.get(f"/data/{path}?{values}&run={run.name}").status_code in (400, 422)


def test_a_step_beyond_32_bits_is_found(client, root):
    from metrics.store import Store

    run = write_run(root, name="long", steps=1, groups=2, nan_at=None, eval_every=0)
    store = Store(run)
    store.add_values([(10_000_000_000, "far", 0.5)], attempt=1, source="test", seq=1, time_s=1.0)
    store.close()
    found = client.get(f"/data/series?run={run.name}&keys=far").json()
    assert (found["steps"][-1], found["columns"]["far"][-1], found["last_step"]) == (10**10, 0.5, 10**10)


@pytest.mark.parametrize("port", ["99999", "0", "-1", "²", "1e3", ""])
def test_a_port_that_is_none_is_refused_with_the_rule(capsys, tmp_path, port):
    with pytest.raises(SystemExit) as refused:
        main(["--runs", str(tmp_path), f"--port={port}"])
    assert refused.value.code == 2
    assert "whole number from 1 to 65535" in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["--runs", str(tmp_path / "file")]) == 2
    assert "name the folder that holds the runs" in capsys.readouterr().err
