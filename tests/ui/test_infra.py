"""The machine that serves the dashboard."""

import threading
import time
from types import SimpleNamespace

import pytest

from ui.infra import CpuMeter


def test_cpu_is_measured_although_each_request_is_answered_by_another_thread():
    meter, seen = CpuMeter(), []
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sum(range(10_000))
    for _ in range(2):
        thread = threading.Thread(target=lambda: seen.append(meter.percent()))
        thread.start()
        thread.join()
    assert 0 < seen[0] <= 100
    assert seen[1] == seen[0]


def test_without_a_cluster_the_machine_is_shown_and_ray_is_absent(dashboard):
    found = dashboard.get("/data/infra").json()
    assert found["ray"] is None
    assert 0 < found["host"]["memory_used"] < found["host"]["memory_total"]


@pytest.fixture
def connected(monkeypatch):
    """As in a replica on a cluster at 192.0.2.2:6379."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="192.0.2.2:6379"))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(ray, "nodes", list)


def test_the_actors_are_those_of_the_own_cluster_where_a_machine_has_several(dashboard, connected, monkeypatch):
    engine = SimpleNamespace(class_name="Engine", name="engine", state="ALIVE", pid=7)
    there = {"192.0.2.2:6379": [engine]}
    monkeypatch.setattr("ray.util.state.list_actors", lambda address=None, **_: there[address])
    assert dashboard.get("/data/infra").json()["ray"]["actors"] == [
        {"class": "Engine", "name": "engine", "state": "ALIVE", "pid": 7}
    ]


def test_what_ray_keeps_for_nodes_and_placement_groups_is_no_resource_of_the_cluster(dashboard, connected, monkeypatch):
    import ray

    group = "4d9124a46be964a17172d99d824d0d000000"
    own = {"CPU": 2.0, "object_store_memory": 7e9, "my_group_of_chips": 1.0}
    kept = (f"CPU_group_0_{group}", f"CPU_group_{group}", f"bundle_group_0_{group}", "node:192.0.2.2", "node:__x__")
    found = own | dict.fromkeys(kept, 1.0)
    monkeypatch.setattr(ray, "cluster_resources", lambda: found)
    monkeypatch.setattr(ray, "available_resources", lambda: found)
    monkeypatch.setattr("ray.util.state.list_actors", lambda **_: [])
    said = dashboard.get("/data/infra").json()["ray"]
    assert (said["total"], said["available"]) == (own, own)


def test_what_ray_cannot_say_is_a_message_beside_the_machine(dashboard, connected, monkeypatch):
    from ray.util.state.exception import ServerUnavailable

    def fails(**_):
        raise ServerUnavailable("Failed to connect to API server.")

    monkeypatch.setattr("ray.util.state.list_actors", fails)
    answer = dashboard.get("/data/infra")
    assert answer.status_code == 200
    assert answer.json()["ray"] == {
        "problem": "Ray does not say what the cluster has (ServerUnavailable): Failed to connect to API server."
    }
    assert answer.json()["host"]["memory_total"] > 0
