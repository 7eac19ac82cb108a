"""The machine that serves the dashboard."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from ui import gpus
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
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a program of that name into the path, which does what is said."""

    def put(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return put


def test_gpus_are_shown_with_what_their_driver_says(dashboard, nvidia_smi):
    nvidia_smi("""
[ "$*" = "--query-gpu=name,utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits" ] || exit 2
echo 'NVIDIA H200, 93, 1024, 143771'
echo 'NVIDIA H200 MIG 1g.18gb, [N/A], 12, [Not Supported]'""")
    assert dashboard.get("/data/infra").json()["host"]["gpus"] == {
        "found": [
            {"name": "NVIDIA H200", "busy_percent": 93, "memory_used": 2**30, "memory_total": 143771 * 2**20},
            {
                "name": "NVIDIA H200 MIG 1g.18gb",
                "busy_percent": None,
                "memory_used": 12 * 2**20,
                "memory_total": None,
            },
        ],
        "problem": None,
    }


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'the driver is too old'; exit 9", "nvidia-smi: the driver is too old"),
        ("echo 'No devices were found'", "nvidia-smi: No devices were found"),
        (r"printf '\377\n'", "nvidia-smi: \ufffd"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_a_driver_that_does_not_answer_is_a_message(dashboard, nvidia_smi, monkeypatch, script, problem):
    monkeypatch.setattr(gpus, "LIMIT_S", 1.0 if "sleep" in script else 60.0)
    nvidia_smi(script)
    found = dashboard.get("/data/infra").json()["host"]
    assert (found["gpus"]["found"], problem in found["gpus"]["problem"]) == ([], True)
    assert found["memory_total"] > 0


def test_without_a_driver_there_are_no_gpus(dashboard, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert dashboard.get("/data/infra").json()["host"]["gpus"] == {"found": [], "problem": None}


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
