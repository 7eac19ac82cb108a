"""The machine that serves the dashboard."""

import threading
import time

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
