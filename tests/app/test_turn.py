import threading
import time
from typing import Any

import pytest

from app import run_dir, turn
from app.admission import GATE_NAME, Admission, QueuePlace
from app.config import from_dict
from app.run_dir import RunDir, namespace_of
from app.turn import what_for

TOTAL = {"CPU": 2.0, "GPU": 8.0}


def place(run_id: str, priority: int = 0, since: float = 0.0, is_starting: bool = False, **wanted: float) -> QueuePlace:
    return QueuePlace(-priority, since, run_id, wanted or {"CPU": 1.0}, is_starting)


def test_a_run_starts_when_nobody_is_before_it_and_all_that_it_reserves_is_free():
    assert what_for(place("mine"), [], TOTAL, TOTAL) is None
    assert what_for(place("mine", CPU=0.1 + 0.2), [], {"CPU": 0.3}, TOTAL) is None
    assert what_for(place("mine"), [place("younger", since=1.0)], TOTAL, TOTAL) is None


def test_what_a_run_waits_for_is_said_with_what_there_is():
    assert what_for(place("mine", CPU=2), [], {}, TOTAL) == "waits for its turn: 2 CPU wanted, 0 of 2 free"
    others = [place("older", since=-1.0), place("younger", since=1.0)]
    assert what_for(place("mine", GPU=3), others, {"GPU": 1.0}, TOTAL) == (
        "waits for its turn: before it: older; 3 GPU wanted, 1 of 8 free"
    )


def test_what_a_run_that_is_starting_will_reserve_is_not_free():
    assert what_for(place("mine"), [place("a", is_starting=True)], TOTAL, TOTAL) is None
    assert what_for(place("mine"), [place("a", is_starting=True, CPU=1.5)], TOTAL, TOTAL) == (
        "waits for its turn: 1 CPU wanted, 0.5 of 2 free"
    )


@pytest.mark.parametrize(
    ("other", "is_before"),
    [
        (place("other", priority=1, since=9.0), True),
        (place("other", priority=-1), False),
        (place("other", since=4.0), True),
        (place("a", since=5.0), True),  # at the same moment the name decides, for both alike
    ],
)
def test_the_highest_priority_is_first_and_then_the_oldest(other, is_before):
    why = what_for(place("mine", since=5.0), [other], TOTAL, TOTAL)
    assert why == (f"waits for its turn: before it: {other.run_id}" if is_before else None)


def waiting(folder, name: str, cpus: float, priority: int) -> tuple[RunDir, threading.Thread, Any]:
    """A run that waits as its driver does, in a thread."""
    import ray

    config = from_dict({"name": name, "model": "embedded", "steps": 1, "environments": [{"name": "sums"}]})
    run = run_dir.create_for(config, folder)
    gate = Admission.options(name=GATE_NAME, namespace=namespace_of(run.id)).remote(1, 0, 1, 1)
    thread = threading.Thread(target=turn.wait, args=({"CPU": cpus}, priority, gate, run), daemon=True)
    thread.start()
    until(lambda: ray.get(gate.place_in_queue.remote()) is not None)
    return run, thread, gate  # an actor without a handle is ended


def until(is_so, limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.stack
def test_runs_without_room_wait_and_start_by_priority_when_there_is_room_again(ray_cluster, tmp_path, monkeypatch):
    import ray

    @ray.remote
    class Holder:
        def is_up(self) -> bool:
            return True

    monkeypatch.setattr(turn, "POLL_S", 0.2)
    total = ray.cluster_resources()["CPU"]
    until(lambda: ray.available_resources().get("CPU", 0) == total)
    holder = Holder.options(num_cpus=total - 0.5).remote()
    assert ray.get(holder.is_up.remote())
    low, low_thread, _gate = waiting(tmp_path, "low", cpus=1.5, priority=0)
    high, high_thread, gate = waiting(tmp_path, "high", cpus=1.0, priority=5)
    short = f"CPU wanted, 0.5 of {total:g} free"
    until(lambda: low.record()["reason"] == f"waits for its turn: before it: {high.id}; 1.5 {short}")
    until(lambda: high.record()["reason"] == f"waits for its turn: 1 {short}")
    assert low.state == "pending"
    ray.kill(holder)
    high_thread.join(30)
    assert (high.state, high.record()["reason"]) == ("starting", None)
    until(lambda: low.record()["reason"] == f"waits for its turn: 1.5 CPU wanted, {total - 1:g} of {total:g} free")
    ray.get(gate.engines_ready.remote())
    assert ray.get(gate.place_in_queue.remote()) is not None, "its trainer may not have its CPUs yet"
    ray.get(gate.wait_for_engines.remote())
    low_thread.join(30)
    assert low.state == "starting"
