"""The store: whatever is killed, cut or changed, the rest is read, and what is damaged is named."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest

from metrics import read
from metrics.journal import read_lines
from metrics.lock import RunIsBeingWritten
from metrics.schema import samples_table
from metrics.segments import FAN_IN, read_manifest
from metrics.store import Store
from tests.metrics.builders import core, sample, write_run


def fill(run_dir: Path, steps: range, key: str = "a") -> Store:
    store = Store(run_dir)
    store.begin(1, 0, {"config": {}, "environments": [], "num_slots": 1})
    for step in steps:
        store.add_values([(step, key, step / 2)], attempt=1, source="t", seq=step, time_s=float(step))
    return store


def test_a_table_is_plain_parquet_with_a_documented_layout(tmp_path):
    fill(tmp_path, range(1, 40)).close()
    rows = pl.read_parquet(tmp_path / "metrics" / "series" / "*.parquet").sort("row")
    assert rows.columns == ["step", "time", "key", "value", "attempt", "row"]
    assert rows["step"].to_list() == list(range(1, 40))


def test_many_small_segments_become_few(tmp_path):
    fill(tmp_path, range(1, FAN_IN**2 + FAN_IN + 3)).close()
    files = sorted(path.name for path in (tmp_path / "metrics" / "series").glob("*.parquet"))
    assert [name[-10:-8] for name in files] == ["L2", "L1", "L0", "L0"]
    assert read.series(tmp_path)["columns"]["a"] == [step / 2 for step in range(1, FAN_IN**2 + FAN_IN + 3)]


@pytest.mark.parametrize("table", ["samples", "evals"])
def test_rows_of_a_version_that_knew_fewer_columns_are_read(tmp_path, table):
    store = fill(tmp_path, range(1, 3))
    outcome = "eval" if table == "evals" else "trained"
    new = samples_table([sample(step=2, sample_id=1, outcome=outcome, turn_times_s=[1.0, 2.0])])
    old = samples_table([sample(outcome=outcome)]).drop_columns(["turn_times_s", "golden_answers"])
    for seq, rows in enumerate((old, new)):
        getattr(store, table).append(rows, attempt=1, source="t", seq=seq, meta={})
    store.close()
    rows, _ = read.samples(tmp_path, outcome=outcome, columns=["turn_times_s", "golden_answers", "step"])
    assert rows.rows() == [(None, None, 1), ([1.0, 2.0], None, 2)]


def test_large_steps_are_kept_exactly(tmp_path):
    steps = [2_147_483_647, 2_147_483_648, 10_000_000_000]
    fill(tmp_path, steps).close()
    assert read.series(tmp_path)["steps"] == steps


@pytest.mark.parametrize("place", range(0, 1200, 97))
def test_a_segment_cut_anywhere_is_named_and_the_rest_is_read(tmp_path, place):
    fill(tmp_path, range(1, 6)).close()
    target = sorted((tmp_path / "metrics" / "series").glob("*.parquet"))[1]
    data = target.read_bytes()
    target.write_bytes(data[: min(place, len(data) - 1)])
    found = read.series(tmp_path)
    assert found["steps"] == [1, 3, 4, 5]
    assert len(found["damaged"]) == 1
    assert target.name in found["damaged"][0]


def test_a_flipped_bit_is_found_and_named(tmp_path):
    run = write_run(tmp_path, steps=6)
    for table in ("series", "samples", "spans", "evals"):
        target = sorted((run / "metrics" / table).glob("*.parquet"))[1]
        data = bytearray(target.read_bytes())
        data[len(data) // 2] ^= 1
        target.write_bytes(data)
        assert [text for text in read.damaged(run) if target.name in text]
    assert len(read.damaged(run)) == 4
    assert len(read.series(run)["steps"]) == 6  # steps 0 to 6 without the damaged one
    assert read.samples(run, limit=None)[1] == 5 * 16


def test_a_missing_segment_is_named(tmp_path):
    fill(tmp_path, range(1, 6)).close()
    target = sorted((tmp_path / "metrics" / "series").glob("*.parquet"))[1]
    target.unlink()
    found = read.series(tmp_path)
    assert (found["steps"], found["damaged"]) == ([1, 3, 4, 5], [f"series/{target.name}: the file is missing"])


def test_a_damaged_segment_is_not_merged_away(tmp_path):
    store = fill(tmp_path, range(1, 6))
    target = sorted((tmp_path / "metrics" / "series").glob("*.parquet"))[1]
    target.write_bytes(b"rubbish")
    for step in range(6, 30):
        store.add_values([(step, "a", 1.0)], attempt=1, source="t", seq=step, time_s=0.0)
    store.close()
    assert target.read_bytes() == b"rubbish"
    assert read.series(tmp_path)["steps"] == [step for step in range(1, 30) if step != 2]
    assert target.name in read.series(tmp_path)["damaged"][0]


def test_a_manifest_cut_anywhere_leaves_a_readable_run_that_can_go_on(tmp_path):
    fill(tmp_path / "whole", range(1, 8)).close()
    folder = tmp_path / "whole" / "metrics" / "series"
    whole = (folder / "manifest.jsonl").read_bytes()
    ends = [place for place, byte in enumerate(whole, 1) if byte == ord("\n")]
    for place in [*range(0, len(whole), 211), *ends, *(end - 1 for end in ends)]:
        (folder / "manifest.jsonl").write_bytes(whole[:place])
        kept = sum(end <= place for end in ends)
        assert read.series(tmp_path / "whole")["steps"] == list(range(1, kept + 1))
        assert read.damaged(tmp_path / "whole") == []


def test_a_writer_that_was_killed_leaves_nothing_in_the_way(tmp_path):
    fill(tmp_path, range(1, 4)).close()
    folder = tmp_path / "metrics" / "series"
    (folder / "000000000003-000000000003.L0.parquet.tmp").write_bytes(b"half")
    (folder / "000000000099-000000000099.L0.parquet").write_bytes(b"never entered in the manifest")
    with (folder / "manifest.jsonl").open("ab") as file:
        file.write(b'12345678 {"file": "half a li')
    store = fill(tmp_path, range(4, 6))
    store.close()
    assert read.series(tmp_path)["steps"] == [1, 2, 3, 4, 5]
    assert read.damaged(tmp_path) == []
    assert len(list(folder.iterdir())) == 5 + 1


def test_a_damaged_line_of_the_manifest_is_named_and_no_file_is_deleted(tmp_path):
    fill(tmp_path, range(1, 6)).close()
    path = tmp_path / "metrics" / "series" / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"level":0', b'"level":1')
    path.write_bytes(b"".join(lines))
    assert read.series(tmp_path)["damaged"] == ["series/manifest.jsonl: line 2 is damaged"]
    fill(tmp_path, range(6, 7)).close()
    assert len(list(path.parent.glob("*.unlisted"))) == 1
    assert read.series(tmp_path)["steps"] == [1, 3, 4, 5, 6]


def test_a_second_writer_is_refused_with_pid_and_host(tmp_path):
    store = fill(tmp_path / "demo-1", range(1, 2))
    with pytest.raises(
        RunIsBeingWritten, match=rf"run 'demo-1' is being written by pid {os.getpid()} on host {socket.gethostname()}"
    ):
        Store(tmp_path / "demo-1")
    store.close()
    Store(tmp_path / "demo-1").close()


def test_an_attempt_only_goes_forward(tmp_path):
    core(tmp_path, attempt=2, resume_step=5).close("failed")
    with pytest.raises(ValueError, match="attempt 1 is over: attempt 2 has begun; use 3"):
        core(tmp_path, attempt=1).close("failed")


def test_the_store_may_be_opened_again_after_a_refusal(tmp_path):
    core(tmp_path, attempt=2, resume_step=5).close("failed")
    with pytest.raises(ValueError, match="attempt 2 resumes from step 5, got 4"):
        core(tmp_path, attempt=2, resume_step=4)
    core(tmp_path, attempt=2, resume_step=5).close("failed")


WRITER = """
import itertools, sys
from metrics.store import Store
from pathlib import Path
store = Store(Path(sys.argv[1]))
store.begin(1, 0, {"config": {}, "environments": [], "num_slots": 1})
for step in itertools.count(1):
    if not store.series.has("t", step):
        store.add_values([(step, f"k{i}", float(step)) for i in range(20)], attempt=1, source="t", seq=step, time_s=0.0)
    print(step, flush=True)
"""


def killed_writer(run_dir: Path, until: int) -> int:
    """Runs a writer, kills it after some acknowledged step, and returns the last step it acknowledged."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(run_dir)], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) >= until:
            process.send_signal(signal.SIGKILL)
            break
    rest = process.stdout.read()
    process.stdout.close()
    process.wait()
    numbers = [int(word) for word in rest.split("\n")[:-1]]
    return numbers[-1] if numbers else until


def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path):
    for until in (3, 40, 300):
        last = killed_writer(tmp_path, until)
        found = read.series(tmp_path)
        assert found["damaged"] == []
        assert found["steps"][:last] == list(range(1, last + 1))
        assert len(found["steps"]) - last in (0, 1)  # at most one step was stored but not yet acknowledged
        assert all(column == [float(step) for step in found["steps"]] for column in found["columns"].values())


def test_a_reader_beside_a_writer_always_sees_whole_steps(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.DEVNULL)
    seen, end = 0, time.monotonic() + 10.0
    while seen < 2 * FAN_IN and time.monotonic() < end:
        found = read.series(tmp_path, max_points=10**6)
        assert found["damaged"] == []
        assert found["steps"] == list(range(1, len(found["steps"]) + 1))
        assert all(None not in column for column in found["columns"].values())
        assert len(found["steps"]) >= seen
        seen = len(found["steps"])
    process.kill()
    process.wait()
    assert seen >= 2 * FAN_IN


def test_the_lines_of_a_journal_are_checked_one_by_one(tmp_path):
    fill(tmp_path, range(1, 3)).close()
    lines = read_lines(tmp_path / "metrics" / "attempts.jsonl")
    assert (len(lines.items), lines.damaged) == (1, [])
    assert read_manifest(tmp_path / "nothing here").segments == []


LOCALE = r"""
import sys
from pathlib import Path
from tests.metrics.builders import core
from metrics.schema import samples_table, spans_table
from tests.metrics.builders import sample
one = core(Path(sys.argv[1]))
one.log_samples("b", 1, samples_table([sample(prompt="\u043f\u043e\u0442\u0435\u0440\u0438", completion="\U0001f3af")]))
one.log_step("t", 1, 1, {"\U0001f3af/acc": 1.0}, spans_table([]), 1)
one.close("finished")
"""


def test_the_locale_of_the_machine_changes_nothing(tmp_path):
    run = tmp_path / "run-ü🎯"
    run.mkdir()
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", LOCALE, os.fsencode(run)], env=os.environ | locale, check=True)
    assert read.series(run)["columns"]["🎯/acc"] == [1.0]
    assert read.samples(run)[0].select("prompt", "completion").row(0) == ("потери", "🎯")


def test_many_runs_are_written_and_read_at_once(tmp_path):
    """Writers never share a file, and readers take no lock: nobody waits for anybody."""
    failures: list[str] = []
    done = threading.Event()

    def write(number: int) -> None:
        fill(tmp_path / f"run-{number}", range(1, 101)).close()

    def read_all() -> None:
        while not done.is_set():
            for number in range(4):
                found = read.series(tmp_path / f"run-{number}")
                if found["steps"] != list(range(1, len(found["steps"]) + 1)) or found["damaged"]:
                    failures.append(str(found))

    readers = [threading.Thread(target=read_all) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in [*readers, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert failures == []
    assert [read.series(tmp_path / f"run-{number}")["last_step"] for number in range(4)] == [100] * 4


def test_a_full_disk_loses_only_what_was_not_acknowledged(tmp_path, monkeypatch):
    store = fill(tmp_path, range(1, 3))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="no room for the next line"):
        store.add_values([(3, "a", 1.0)], attempt=1, source="t", seq=3, time_s=0.0)
    monkeypatch.undo()
    store.add_values([(3, "a", 1.5)], attempt=1, source="t", seq=3, time_s=0.0)
    store.close()
    found = read.series(tmp_path)
    assert (found["columns"]["a"], found["damaged"]) == ([0.5, 1.0, 1.5], [])
