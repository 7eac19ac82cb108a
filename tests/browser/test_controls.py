"""Run controls in the browser, against the application as it is deployed: Ray Serve, Ray Jobs, vLLM, the trainer."""

import pytest
from ruamel.yaml import YAML

from app.config import load
from app.jobs import Jobs
from tests.control import control_plane
from tests.e2e.test_runs import small_run

pytestmark = [pytest.mark.stack, pytest.mark.browser, pytest.mark.timeout(1200)]


def test_a_run_is_started_watched_stopped_resumed_duplicated_and_its_failure_read(
    flow, ray_cluster, serve_url, tmp_path
):
    config = small_run(name="browser", steps=400, checkpoint_every=1, max_async_rollout=1)
    file = tmp_path / "config.yaml"
    YAML(typ="safe", pure=True).dump(config, file)
    with control_plane(tmp_path / "runs", serve_url):
        found = flow(
            "controls", serve_url, limit_s=900, config=file.read_text(), backend="tests.e2e.backends:DiesInStepThree"
        )
    jobs = Jobs(ray_cluster.dashboard_url, tmp_path / "runs")
    first, second = jobs.get(found["first"]), jobs.get(found["second"])
    assert (first.status(), first.record()["attempt"]) == ("stopped", 2)
    assert load(first.directory.config_path).keep_last == 3  # changed when it was resumed
    assert (second.status(), second.status().reason) == ("failed", "ArithmeticError: step 3 is my last")
    assert first.metrics()["last_step"] >= found["resumed_at"] > found["stopped_at"] > 0
