"""The control plane as it is deployed: dashboard and job API behind one address."""

import time
from pathlib import Path

import httpx
import pytest
from ruamel.yaml import YAML

from app import run_dir
from app.run_dir import RunDir
from tests.control import control_plane


@pytest.fixture(scope="module")
def control(serve_url, ray_cluster, tmp_path_factory):
    """An HTTP client of the control plane, and the folder of its runs."""
    root = tmp_path_factory.mktemp("runs")
    with control_plane(root, serve_url), httpx.Client(base_url=serve_url, timeout=30) as http:
        yield http, root


def dead_run(root) -> RunDir:
    """A run whose driver was killed: it says running, and nobody holds its lock."""
    run = run_dir.create(
        root, name="dead", config_yaml="", steps=3, model="embedded", environments=["sums"], algorithm="grpo"
    )
    with run.writer():
        run.update(state="running")
    return run


@pytest.mark.stack
def test_dashboard_and_job_api_answer_at_one_address(control):
    http, root = control
    assert "Telescope" in http.get("/").text
    assert http.get("/api/runs").json() == []
    assert "/api/runs/{run_id}/stop" in http.get("/api/openapi.json").json()["paths"]
    assert http.get("/data/runs").json()["controls"]["on"] is True
    refused = http.post("/api/runs", json={"config": "demo.yaml", "overrides": ["stepz=1"]})
    assert (refused.status_code, "did you mean 'steps'" in refused.text) == (422, True)
    assert list(root.iterdir()) == []


@pytest.mark.stack
def test_another_host_name_and_a_foreign_page_are_refused(control):
    http, _ = control
    assert http.get("/api/runs", headers={"host": "attacker.example"}).status_code == 403
    assert http.post("/api/runs", json={}, headers={"origin": "http://attacker.example"}).status_code == 403


@pytest.mark.stack
def test_a_dead_run_is_put_right_while_nobody_asks(control):
    http, root = control
    run = dead_run(root)
    end = time.monotonic() + 60
    while run.state != "failed":
        assert time.monotonic() < end
        time.sleep(0.5)
    assert "ended without saying why" in run.record()["reason"]
    assert http.get(f"/api/runs/{run.id}").json()["state"] == "failed"


def test_the_deployment_file_binds_to_this_machine_and_names_the_application():
    import app.serve as deployed

    with (Path(__file__).parents[2] / "configs" / "serve.yaml").open() as file:
        found = YAML(typ="safe", pure=True).load(file)
    assert found["http_options"] == {"host": "127.0.0.1", "port": 8000}
    [application] = found["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, hasattr(deployed, name)) == ("app.serve", True)
