import json
import math

import pytest
from fastapi.testclient import TestClient

from app import api, run_dir
from app.config import load
from app.jobs import Jobs
from ui.app import without_pages

DRIVER = "tests.app.stand_in_driver"
JSON = {"Content-Type": "application/json"}
PLAN = {
    "name": "finishes",
    "model": "embedded",
    "steps": 3,
    "environments": [{"name": "sums", "reward_min": 0.0, "reward_max": 1.0}],
}


@pytest.fixture
def configs(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "small.yaml").write_text(
        "name: finishes\nmodel: embedded\nsteps: 3\nenvironments:\n  - {name: sums, reward_min: 0.0, reward_max: 1.0}\n"
    )
    return folder


def client(jobs: Jobs, configs) -> TestClient:
    app = without_pages(configs.parent / "runs", None, [api.routes(jobs, configs)])
    return TestClient(app, base_url="http://127.0.0.1")


@pytest.fixture
def offline(tmp_path, configs) -> TestClient:
    """The API with runs and without a cluster."""
    return client(Jobs(address="http://127.0.0.1:9", root=tmp_path / "runs", driver=DRIVER), configs)


def new_run(tmp_path, name="demo"):
    return run_dir.create(
        tmp_path / "runs",
        name=name,
        config_yaml="",
        steps=3,
        model="embedded",
        environments=["sums"],
        algorithm="grpo",
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"config": {**PLAN, "group_sise": 4}}, "did you mean 'group_size'"),
        ({"config": {**PLAN, "steps": "three"}}, "steps"),
        ({"config": "small.yaml", "overrides": ["stepz=4"]}, "steps"),
        ({"config": "../small.yaml"}, "not one of small.yaml"),
        ({"config": {**PLAN, "environments": [{"name": "/tmp/own.py"}]}}, "the path of a file is for the command line"),
        (
            {"config": "small.yaml", "overrides": ["environments.0.name=own.py:One"]},
            "path of a file is for the command",
        ),
        ({"config": "/etc/passwd"}, "not one of small.yaml"),
        ({"config": "small.yaml", "entrypoint": "touch /tmp/pwned"}, "Extra inputs are not permitted"),
        ({"config": {**PLAN, **{f"k{i}": 0 for i in range(3_000)}}}, "and 2950 more"),
        ({"config": "small.yaml", "overrides": ["a=1"] * 201}, "at most 200 items"),
        ({"config": "small.yaml", "overrides": ["a" + ".a" * 9_999 + "=1"]}, "the key has 19999 characters"),
    ],
)
def test_a_run_is_refused_with_what_is_wrong(offline, tmp_path, body, message):
    answer = offline.post("/api/runs", json=body)
    assert answer.status_code == 422
    assert message in answer.text
    assert not (tmp_path / "runs").exists()


def test_a_key_that_stands_twice_is_refused(offline):
    answer = offline.post("/api/runs", content='{"config": {"name": "a", "name": "b"}}', headers=JSON)
    assert (answer.status_code, answer.json()["detail"]) == (422, "key 'name' stands twice; leave one out")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 50_000, b'{"config": "small.yaml", "half": "\\ud800"}'],
    ids=["empty", "cut", "not text", "deep", "half a character"],
)
def test_a_body_that_is_no_json_is_refused(offline, body):
    answer = offline.post("/api/runs", content=body, headers=JSON)
    assert answer.status_code in (400, 422)
    assert "the body" in answer.json()["detail"]


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_a_body_that_does_not_say_it_is_json_is_refused(offline, headers):
    answer = offline.post("/api/runs", content=b'{"config": "small.yaml"}', headers=headers)
    assert answer.status_code == 415
    assert answer.json()["detail"].endswith("send it with 'Content-Type: application/json'")


@pytest.mark.parametrize("place", ["/api/runs", "/api/runs/any/resume"])
def test_a_body_larger_than_a_configuration_is_not_read(offline, place):
    answer = offline.post(place, content=b'{"config": "' + b"a" * 65_536 + b'"}', headers=JSON)
    assert (answer.status_code, "at most 65,536" in answer.text) == (413, True)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("[NaN]", "overrides.0: Input should be a valid string, got nan"),
        ("NaN", "overrides: Input should be a valid list, got nan"),
        ('["a=1", 1]', "overrides.1: Input should be a valid string, got 1"),
        ('{"a": 1}', "overrides: Input should be a valid list, got {'a': 1}"),
        ("null", "overrides: Input should be a valid list, got None"),
    ],
)
def test_overrides_that_are_no_texts_are_refused(offline, tmp_path, resumed, overrides, message):
    place = f"/api/runs/{new_run(tmp_path).id}/resume" if resumed else "/api/runs"
    config = "" if resumed else '"config": "small.yaml", '
    answer = offline.post(place, content=f'{{{config}"overrides": {overrides}}}', headers=JSON)
    assert (answer.status_code, answer.json()["detail"]) == (422, message)


@pytest.mark.parametrize("config", ["NaN", "[NaN]", "null", "[" + '"' + "a" * 9_000 + '"]'])
def test_what_is_no_configuration_is_refused_and_not_repeated(offline, config):
    answer = offline.post("/api/runs", content=f'{{"config": {config}}}', headers=JSON)
    assert (answer.status_code, answer.json()["detail"][:8]) == (422, "config.d")
    assert len(answer.content) < 400


def test_a_key_that_is_not_known_is_cut_and_written_harmlessly(offline):
    answer = offline.post("/api/runs", json={"config": "small.yaml", "\x1b[31m\n" + "a" * 9_000: 1})
    detail = answer.json()["detail"]
    assert (answer.status_code, detail[:12], len(detail) < 200) == (422, r"\x1b[31m\naa"[:12], True)


def test_of_many_faults_some_are_told(offline):
    answer = offline.post("/api/runs", json={"config": "small.yaml", "overrides": list(range(9))})
    assert answer.json()["detail"].endswith("overrides.4: Input should be a valid string, got 4; and 4 more")


def test_half_a_character_in_a_change_is_refused(offline):
    answer = offline.post("/api/runs/any/resume", content=b'{"overrides": ["\\ud800"]}', headers=JSON)
    assert (answer.status_code, answer.json()["detail"][:25]) == (422, "the body is not JSON: 'ut")


def test_without_a_cluster_a_start_is_unavailable_and_reading_works(offline, tmp_path):
    run = new_run(tmp_path)
    answer = offline.post("/api/runs", json={"config": "small.yaml"})
    assert answer.status_code == 503
    assert "no Ray cluster" in answer.json()["detail"]
    assert [found["id"] for found in offline.get("/api/runs").json()] == [run.id]
    assert offline.get(f"/api/runs/{run.id}").json()["state"] == "pending"
    assert offline.get("/api/configs").json() == ["small.yaml"]


@pytest.mark.parametrize("run_id", ["nothing", "..%2f..%2fetc", "%2e%2e", "con", "a%00b"])
def test_an_id_that_is_no_run_is_refused(offline, run_id):
    assert offline.get(f"/api/runs/{run_id}").status_code in (404, 409)


def test_a_run_has_a_phase_while_it_starts_and_an_ended_one_stays_as_it_is_when_stopped(offline, tmp_path):
    run = new_run(tmp_path)
    run.enter("loading the trainer")
    assert offline.get(f"/api/runs/{run.id}").json()["phase"] == "loading the trainer"
    run.end("failed", "no room for the KV cache")
    answer = offline.post(f"/api/runs/{run.id}/stop").json()
    assert (answer["state"], answer["reason"], answer["phase"]) == ("failed", "no room for the KV cache", None)


def test_a_damaged_run_does_not_break_the_list(offline, tmp_path):
    good, bad = new_run(tmp_path), new_run(tmp_path)
    (bad.path / "run.json").write_text("{")
    assert [found["id"] for found in offline.get("/api/runs").json()] == [good.id]
    assert offline.get(f"/api/runs/{bad.id}").status_code == 409


@pytest.mark.parametrize(
    "change", [{"created_at": "yesterday"}, {"created_at": math.nan}, {"tags": 3}, {"versions": [1]}, {"notes": None}]
)
def test_an_odd_record_does_not_break_the_list_and_says_what_is_odd(offline, tmp_path, change):
    good, odd = new_run(tmp_path), new_run(tmp_path)
    (odd.path / "run.json").write_text(json.dumps({**odd.record(), **change}))
    assert [found["id"] for found in offline.get("/api/runs").json()] == [good.id]
    answer = offline.get(f"/api/runs/{odd.id}")
    assert (answer.status_code, next(iter(change)) in answer.json()["detail"]) == (409, True)


def test_half_a_character_in_a_record_arrives_as_its_escape(offline, tmp_path):
    run = new_run(tmp_path)
    (run.path / "run.json").write_text(json.dumps({**run.record(), "notes": "a\ud83d"}))
    assert [found["notes"] for found in offline.get("/api/runs").json()] == ["a\\ud83d"]


def test_a_record_of_another_version_says_what_it_lacks(offline, tmp_path):
    run = new_run(tmp_path)
    (run.path / "run.json").write_text('{"format": 1, "state": "running"}')
    assert offline.get("/api/runs").json() == []
    assert "lacks algorithm, archived" in offline.get(f"/api/runs/{run.id}").json()["detail"]


@pytest.mark.parametrize("query", ["columns=nonsense", f"step={10**30}", f"group_id=-{10**30}", "limit=0", "step=²"])
def test_samples_that_there_cannot_be_are_refused(offline, tmp_path, query):
    run = new_run(tmp_path)
    assert offline.get(f"/api/runs/{run.id}/samples?{query}").status_code == 422


def test_numbers_that_are_not_finite_are_marked():
    body = api.strict({"reward": [1.0, math.nan, math.inf, -math.inf]}).body
    assert body == b'{"reward": [1.0, {"nonfinite": "nan"}, {"nonfinite": "inf"}, {"nonfinite": "-inf"}]}'


def test_the_api_describes_itself(offline):
    paths = offline.get("/api/openapi.json").json()["paths"]
    assert {"/api/runs", "/api/runs/{run_id}/stop", "/api/runs/{run_id}/metrics"} <= set(paths)
    assert offline.get("/api/docs").status_code == 200


@pytest.mark.stack
def test_a_run_over_http_from_start_to_resume(ray_cluster, tmp_path, configs):
    http = client(Jobs(address=ray_cluster.dashboard_url, root=tmp_path / "runs", driver=DRIVER), configs)
    started = http.post("/api/runs", json={"config": "small.yaml", "overrides": ["name=works", "checkpoint_every=1"]})
    assert started.status_code == 201
    run_id = started.json()["id"]
    assert http.post(f"/api/runs/{run_id}/resume").status_code == 409
    assert http.post(f"/api/runs/{run_id}/stop").json()["state"] == "stopped"
    refused = http.post(f"/api/runs/{run_id}/resume", json={"overrides": ["steps=9"]})
    assert refused.status_code == 422
    assert "is 3, got 9, and cannot change in a resumed run" in refused.json()["detail"]
    resumed = http.post(f"/api/runs/{run_id}/resume", json={"overrides": ["num_workers=2"]}).json()
    assert resumed["attempt"] == 2
    assert load(tmp_path / "runs" / run_id / "config.yaml").num_workers == 2
    Jobs(address=ray_cluster.dashboard_url, root=tmp_path / "runs").get(run_id).wait(60)
    assert http.get(f"/api/runs/{run_id}").json()["state"] == "finished"
    one, more = (http.get(f"/api/runs/{run_id}/logs", params={"tail": n}).json()["lines"] for n in (1, 20))
    assert len(one) == 1
    assert f"driver of {run_id}, resume=True" in more  # Ray's own line may come after it
