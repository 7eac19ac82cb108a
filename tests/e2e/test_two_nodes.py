"""The demo on two Ray nodes of this machine: the engine on one, the trainer on the other, whose clock is another."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import polars as pl
import pytest
from ray.util.state import list_actors, list_nodes

from app import local_ray
from app.jobs import Jobs, Run
from app.launch import Dashboard
from app.local_ray import LocalRay
from metrics import read
from metrics.recompute import recompute

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

AHEAD_S = 5_000
"""What the second node's monotonic clock shows more, as if its host had been started so much earlier."""
RUN_TIMEOUT_S = 400
SECOND = "127.0.0.2"
"""Its address, and so its name."""
STORE_MB = 200
EACH_CPUS = 0.85
"""Of an engine and of a trainer: a node of one CPU has no room for both."""
SLACK_S = 0.1
NODES_LIMIT_S = 120
ROOT = Path(__file__).resolve().parents[2]


@cache
def has_time_namespaces() -> bool:
    """Whether the second node can have another clock here: not everybody may make one."""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "--time", "--monotonic", "1", "true"], capture_output=True, check=False)
    return done.returncode == 0


def await_nodes(cluster: LocalRay, count: int) -> None:
    end = time.monotonic() + NODES_LIMIT_S
    while len([node for node in list_nodes(address=cluster.dashboard_url) if node.state == "ALIVE"]) < count:
        log = (cluster.folder / "second.log").read_text(errors="replace")
        assert time.monotonic() < end, f"no {count} nodes within {NODES_LIMIT_S} s:\n{log[-3000:]}"
        time.sleep(0.5)


@contextlib.contextmanager
def second_node(cluster: LocalRay) -> Iterator[None]:
    """A raylet of its own, with an object store of its own; it ends with the cluster."""
    apart = ["unshare", "--time", "--monotonic", str(AHEAD_S)] if has_time_namespaces() else []
    [agent] = local_ray.free_ports(1)
    command = [
        *(*apart, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *(f"--address={cluster.address}", f"--node-ip-address={SECOND}", f"--dashboard-agent-listen-port={agent}"),
        *("--min-worker-port=0", "--max-worker-port=0", "--num-cpus=1", f"--object-store-memory={STORE_MB}000000"),
    ]
    environment = os.environ | local_ray.ENVIRONMENT | {local_ray.MARK: str(cluster.folder)}
    with (cluster.folder / "second.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        await_nodes(cluster, 2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalRay]:
    with local_ray.local_ray(num_cpus=1, object_store_mb=STORE_MB) as cluster, second_node(cluster):
        yield cluster


@pytest.fixture(scope="module")
def dashboard(cluster) -> Dashboard:
    return Dashboard(cluster, local_ray.free_ports(1)[0])


@pytest.fixture(scope="module")
def run(cluster, dashboard, tmp_path_factory) -> Run:
    jobs = Jobs(cluster.dashboard_url, tmp_path_factory.mktemp("runs"))
    changes = ["steps=6", "evals=[]", f"engine.cpus={EACH_CPUS}", f"cpus_per_worker={EACH_CPUS}", "checkpoint_every=3"]
    run = jobs.submit(ROOT / "configs" / "demo.yaml", changes)
    status = run.wait(RUN_TIMEOUT_S)
    assert status == "finished", f"{status.reason}\n{run.logs(tail=60)}"
    return run


def test_the_demo_passes_with_engine_and_trainer_on_different_nodes(cluster, run):
    nodes = {actor.class_name: actor.node_id for actor in list_actors(address=cluster.dashboard_url, limit=1000)}
    [engine] = {node for name, node in nodes.items() if name.endswith(":engine")}
    [trainer] = {node for name, node in nodes.items() if name == "RayTrainWorker"}
    assert engine != trainer
    assert read.series(run.directory.path)["last_step"] == 6
    assert recompute(run.directory.path).differences == []
    assert {path.name for path in run.directory.checkpoints.glob("step_*")} == {"step_000003", "step_000006"}
    red = {one["check"] for one in read.checks(run.directory.path) if not one["ok"]}
    assert red <= {"groups_tied", "metrics_keep_up"}


def test_infra_shows_both_nodes(dashboard, run):
    found = httpx.get(f"{dashboard.url}/data/infra", timeout=30).json()["ray"]
    assert [(node["alive"], node["resources"]["CPU"]) for node in found["nodes"]] == [(True, 1), (True, 1)]
    assert SECOND in {node["name"] for node in found["nodes"]}
    assert (found["total"]["CPU"], found["available"]["CPU"]) == (2, 2)


def test_what_happened_on_both_is_on_one_clock(run):
    """A sample is generated, then scored, then trained; engines load weights while the trainer pushes them."""
    if not has_time_namespaces():
        pytest.skip("no time namespace can be made here, so both nodes have the same clock")
    spans = pl.concat(pl.read_parquet(path) for path in (run.directory.path / "metrics" / "spans").glob("*.parquet"))
    steps = spans.filter(pl.col("kind") == "step").select("step", "start_s", "end_s")
    samples = run.samples(limit=100_000)[0].filter(pl.col("outcome") == "trained").join(steps, on="step")
    assert len(samples) > 300
    ordered = samples.filter(
        (pl.col("generate_start_s") > steps["start_s"].min() - SLACK_S)
        & (pl.col("generate_end_s") >= pl.col("generate_start_s"))
        & (pl.col("reward_start_s") > pl.col("generate_end_s") - SLACK_S)
        & (pl.col("reward_end_s") < pl.col("end_s") + SLACK_S)
    )
    assert len(ordered) == len(samples)
    loads = spans.filter(pl.col("kind") == "weight_sync_inference").join(steps, on="step", suffix="_of_step")
    assert len(loads) == 6
    assert (loads["start_s"] > loads["start_s_of_step"] - SLACK_S).all()
    assert (loads["end_s"] < loads["end_s_of_step"] + SLACK_S).all()
