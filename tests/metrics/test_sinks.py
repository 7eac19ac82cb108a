"""Sinks: the same numbers go to W&B, and no failure of a service reaches the run."""

import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics import sinks
from metrics.journal import read_lines
from metrics.schema import spans_table
from metrics.sinks import ThreadedSink, tensorboard_sink, wandb_sink
from metrics.store import CHECKS
from tests.metrics.builders import core


class Written:
    """A service that keeps what it gets, and fails when it is told to."""

    def __init__(self, fails: str = "") -> None:
        self.rows: list[tuple[int, dict]] = []
        self.states: list[str] = []
        self.fails = fails

    def open(self, say):
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
    end = time.monotonic() + 10
    found: list[dict] = []
    step = 0
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

    def hanging(say):
        release.wait(30)
        return (lambda step, values: None), (lambda state: None)

    sink = ThreadedSink("service", hanging)
    began = time.monotonic()
    for step in range(10):
        sink.log(step, {"a": 1.0})
    sink.close("finished")
    assert time.monotonic() - began < 5
    assert "rows were dropped because 3 are waiting" in sink.trouble()
    assert sink.trouble() is None
    release.set()
    sink.thread.join(10)


def test_sinks_that_hang_are_waited_for_together_and_the_others_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks, "CLOSE_TIMEOUT_S", 1.0)
    release, service = threading.Event(), Written()

    def hanging(say):
        release.wait(30)
        return (lambda step, values: None), (lambda state: None)

    stuck = [ThreadedSink(f"stuck {number}", hanging) for number in range(4)]
    one = core(tmp_path, sinks=[*stuck, ThreadedSink("service", service.open)])
    began = time.monotonic()
    one.close("finished")
    assert time.monotonic() - began < 3
    assert service.states == ["finished"]
    told = {item["check"] for item in read_lines(one.store.root / CHECKS).items}
    assert told == {sink.name for sink in stuck}
    release.set()
    for sink in stuck:
        sink.thread.join(10)


def test_a_service_that_cannot_be_opened_is_asked_once(tmp_path):
    asked = []

    def refusing(say):
        asked.append(1)
        raise PermissionError("no account")

    sink = ThreadedSink("service", refusing)
    sink.thread.join(10)
    for step in range(20):
        sink.log(step, {"a": 1.0})
    sink.close("finished")
    assert "service: PermissionError: no account; gave up, nothing is sent" in sink.trouble()
    assert (len(asked), sink.trouble(), sink.waiting.qsize()) == (1, None, 1)


ATTEMPT = """
import sys
from pathlib import Path
from metrics import sinks
run, mode, rows = Path(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
run.mkdir(exist_ok=True)
sinks.WANDB_START_TIMEOUT_S = 2.0
sink = sinks.wandb_sink(run, {"project": "p", "mode": mode}, {"algorithm": "grpo"})
for step, values in rows:
    sink.log(step, values)
sink.close("finished")
print(sink.trouble())
"""


def attempt(run: Path, rows: list[tuple[int, dict[str, float]]], mode: str = "offline", **environment: str) -> str:
    """One attempt of a run with the real library, in a process of its own; returns what went wrong, or "None"."""
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPT, str(run), mode, repr(rows).replace("nan", "float('nan')")],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=run.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_wandb_offline_has_the_same_keys_by_step_and_every_attempt_in_one_run(tmp_path):
    """Without account or network. `wandb sync` sends the files of one id to one run, in the order of their start."""
    first = [
        (1, {"reward_mean": 0.5, "my/own/key": math.nan}),
        (3, {"reward_mean": 0.75}),
        (2, {"eval/sums/reward_mean": 1.0}),
    ]
    for rows in (first, [(4, {"reward_mean": 0.25})]):
        assert attempt(tmp_path / "demo-1", rows) == "None"
        time.sleep(1.0)  # the names of the files tell seconds apart
    assert stored(tmp_path / "demo-1") == [
        (
            "demo-1",
            [
                {"step": 1, "reward_mean": 0.5, "my/own/key": "NaN"},
                {"step": 3, "reward_mean": 0.75},
                {"step": 2, "eval/sums/reward_mean": 1.0},
            ],
        ),
        ("demo-1", [{"step": 4, "reward_mean": 0.25}]),
    ]


def test_without_a_network_wandb_goes_on_offline_and_says_so(tmp_path):
    began = time.monotonic()
    nowhere = {"WANDB_BASE_URL": f"http://127.0.0.1:{free_port()}", "WANDB_API_KEY": "0" * 40}
    said = attempt(tmp_path / "demo-1", [(1, {"a": 1.0})], "online", **nowhere)
    assert "CommError" in said
    assert "goes on offline, send it later with: wandb sync demo-1/wandb/*" in said
    assert stored(tmp_path / "demo-1") == [("demo-1", [{"step": 1, "a": 1.0}])]
    assert time.monotonic() - began < 60


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "demo-1").mkdir()
    (tmp_path / "demo-1" / "wandb").write_text("a file where a folder should be")
    said = attempt(tmp_path / "demo-1", [(1, {"a": 1.0})])
    assert "NotADirectoryError" in said
    assert "gave up, nothing is sent; the run goes on, its own record is complete" in said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stored(run_dir: Path) -> list[tuple[str, list[dict]]]:
    """Of each of W&B's own offline files, in the order of their start: the run's id and its rows."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted((run_dir / "wandb").glob("offline-run-*/*.wandb")):
        records = [Record.FromString(data) for data in logged_records(path.read_bytes())]
        (run_id,) = {record.run.run_id for record in records if record.WhichOneof("record_type") == "run"}
        found.append((run_id, [row_of(record) for record in records if record.WhichOneof("record_type") == "history"]))
    return found


def row_of(record) -> dict:
    items = {
        item.key or "/".join(item.nested_key): json.loads(item.value_json, parse_constant=str)
        for item in record.history.item
    }
    return {key: value for key, value in items.items() if not key.startswith("_")}


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


def events(run_dir: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of TensorBoard's event files: records of length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((run_dir / "tensorboard").iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length
            if event.HasField("session_log"):
                found.append(("purge", event.step, math.nan))
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def test_tensorboard_has_the_same_keys_by_step(tmp_path):
    sink = tensorboard_sink(tmp_path, None)
    sink.log(1, {"reward/a/reward_mean": 0.5})
    sink.log(2, {"reward/a/reward_mean": 0.75})
    sink.close("finished")
    assert (sink.trouble(), events(tmp_path)) == (
        None,
        [("reward/a/reward_mean", 1, 0.5), ("reward/a/reward_mean", 2, 0.75)],
    )


def test_a_resume_hides_in_tensorboard_what_it_abandons(tmp_path):
    one = core(tmp_path)
    assert one.resumed_at is None
    for step in (1, 2, 3):
        one.log_step("trainer/1", step, step, {}, spans_table([]), 0)
    one.close("failed")
    two = core(tmp_path, attempt=2, resume_step=2)
    sink = tensorboard_sink(tmp_path, two.resumed_at)
    sink.log(3, {"a": 1.0})
    sink.close("finished")
    assert [(tag, step) for tag, step, _ in events(tmp_path)] == [("purge", 3), ("a", 3)]
    two.log_step("trainer/2", 3, 3, {}, spans_table([]), 0)
    assert two.resumed_at is None  # an actor that is restarted now hides nothing
