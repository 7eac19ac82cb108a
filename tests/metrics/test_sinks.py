"""Sinks: the same numbers go to W&B, and no failure of a service reaches the run."""

import json
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics import sinks
from metrics.schema import spans_table
from metrics.sinks import ThreadedSink, wandb_sink
from tests.metrics.builders import core


class Written:
    """A service that keeps what it gets, and fails when it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.rows: list[tuple[int, dict]] = []
        self.states: list[str] = []
        self.fails = fails

    def open(self):
        if self.fails == "open":
            raise ConnectionError("no route to host")
        return self.write, self.states.append

    def write(self, step, values):
        if self.fails == "write":
            raise RuntimeError("quota")
        self.rows.append((step, values))


def test_a_sink_gets_every_step_and_the_end(tmp_path):
    service = Written()
    one = core(tmp_path, sinks=[ThreadedSink("service", service.open)])
    for step in (1, 2):
        row = one.log_step("trainer", step, step, {"a/b": 0.5 * step}, spans_table([]), 0)
    one.close("finished")
    assert [step for step, _ in service.rows] == [1, 2]
    assert service.rows[1][1] == {key: value for key, value in row.items() if key != "checks"}
    assert service.states == ["finished"]


@pytest.mark.parametrize(
    ("fails", "said"), [("open", "ConnectionError: no route to host"), ("write", "RuntimeError: quota")]
)
def test_a_failing_service_is_shown_and_stops_nothing(tmp_path, fails, said):
    one = core(tmp_path, sinks=[ThreadedSink("service", Written(fails).open)])
    one.log_step("trainer", 1, 1, {}, spans_table([]), 0)
    end = time.monotonic() + 10
    found: list[dict] = []
    step = 1
    while not found and time.monotonic() < end:
        step += 1
        row = one.log_step("trainer", step, step, {}, spans_table([]), 0)
        found = [item for item in row["checks"] if item["check"] == "service"]
        time.sleep(0.01)
    one.close("finished")
    assert said in found[0]["message"]
    assert not found[0]["ok"]


def test_a_service_that_hangs_costs_the_run_nothing(monkeypatch):
    monkeypatch.setattr(sinks, "CAPACITY", 3)
    monkeypatch.setattr(sinks, "CLOSE_TIMEOUT_S", 0.1)
    release = threading.Event()

    def hanging():
        release.wait(30)
        return (lambda step, values: None), (lambda state: None)

    sink = ThreadedSink("service", hanging)
    began = time.monotonic()
    for step in range(10):
        sink.log(step, {"a": 1.0})
    sink.close("finished")
    assert time.monotonic() - began < 5
    assert "rows were dropped because 3 are waiting" in sink.trouble()
    release.set()
    sink.thread.join(10)


def test_wandb_offline_writes_the_same_keys_by_step(tmp_path):
    """The real library, without account or network, in a process of its own."""
    code = f"""
from pathlib import Path
from metrics.sinks import wandb_sink
run = Path({str(tmp_path)!r}) / "demo-1"
run.mkdir()
sink = wandb_sink(run, {{"project": "p", "mode": "offline"}}, {{"algorithm": "grpo"}})
sink.log(1, {{"reward_mean": 0.5, "my/own/key": float("nan")}})
sink.log(3, {{"reward_mean": 0.75}})
sink.log(2, {{"eval/sums/reward_mean": 1.0}})
sink.close("finished")
print(sink.trouble())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout.strip().splitlines()[-1] == "None", done.stdout + done.stderr
    assert stored_history(tmp_path / "demo-1") == [
        {"step": 1, "reward_mean": 0.5, "my/own/key": "NaN"},
        {"step": 3, "reward_mean": 0.75},
        {"step": 2, "eval/sums/reward_mean": 1.0},
    ]


def stored_history(run_dir: Path) -> list[dict]:
    """The rows of W&B's own offline file."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    rows = []
    for data in logged_records(path.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json, parse_constant=str)
                for item in record.history.item
            }
            rows.append({key: value for key, value in items.items() if not key.startswith("_")})
    return rows


def logged_records(data: bytes, block: int = 32_768) -> Iterator[bytes]:
    """The records of a LevelDB log after a head of 7 bytes: checksum, length, type (1 whole, 2 first, 3 middle, 4
    last)."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_an_unusable_project_is_shown(tmp_path):
    sink = wandb_sink(tmp_path, {"mode": "no such mode"}, {})
    sink.log(1, {"a": 1.0})
    sink.close("finished")
    assert "wandb" in sink.trouble()
