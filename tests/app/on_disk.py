"""What tests/app/test_disk.py does on a file system of its own that is small, or read-only: one function a test.

python -m tests.app.on_disk FUNCTION FOLDER
"""

import contextlib
import errno
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import run_dir
from app.config import from_dict
from app.jobs import Jobs
from app.run_dir import RunDir, RunError
from metrics import read
from metrics.recompute import recompute
from metrics.schema import samples_table, spans_table
from tests.metrics.builders import core, group

NOWHERE = "http://127.0.0.1:9"
CONFIG = from_dict({"name": "disk", "model": "embedded", "steps": 9, "environments": [{"name": "sums"}]})


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """The file system has no room left."""
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(b"x" * size)
    yield
    (folder / "ballast").unlink()


def there_is_no_room() -> Any:
    return pytest.raises(OSError, match=r"\[Errno 28\] No space left on device")


def begun(folder: Path) -> RunDir:
    """A run that is running by its own account, and whose driver is gone."""
    run = run_dir.create_for(CONFIG, folder)
    with run.writer():
        run.update(state="running")
    (run.checkpoints / "step_000001").mkdir()
    (run.checkpoints / "step_000001" / "place.json").write_text("{}")
    return run


def store(folder: Path) -> None:
    """Steps are logged until one does not fit; after some room was made the same attempt goes on with that step."""
    run = folder / "run"

    def log(one, step: int) -> None:
        rows = group([0.0, 1.0], group_id=step, step=step)
        one.log_samples("batcher", step, samples_table(rows))
        clock = [{"step": step, "lane": "trainer 0", "kind": "step", "start_s": step - 1.0, "end_s": float(step)}]
        one.log_step("trainer", step, step, {"entropy": 1.0}, spans_table(clock), 2 * step)

    (folder / "room").write_bytes(b"x" * 200_000)
    writer, logged = core(run), 0
    with there_is_no_room():
        for step in itertools.count(1):
            log(writer, step)
            logged = step
    assert logged > 3
    assert read.series(run)["steps"] == list(range(1, logged + 1))
    (folder / "room").unlink()
    with contextlib.suppress(OSError):
        writer.store.lock.release()
    again = core(run)
    log(again, logged + 1)
    again.close("finished")
    assert read.series(run)["steps"] == list(range(1, logged + 2))
    assert read.samples(run)[1] == 2 * (logged + 1)
    assert recompute(run).differences == []


def checkpoint(folder: Path) -> None:
    """A checkpoint that does not fit leaves the one before it as the newest."""
    import torch

    from app.admission import Cursor
    from app.checkpoint import CheckpointError, ResumePoint, seal, write
    from app.sealed import newest, step_of

    policy = torch.nn.Linear(32, 32)
    trainer = SimpleNamespace(policy=policy, optimizer=torch.optim.AdamW(policy.parameters()), updates=1)
    seal(write(folder, trainer, 1), trainer, ResumePoint(1, Cursor(1)), keep_last=1)
    said = r"rank 0 could not write .*step_000002: OSError: \[Errno 28\] No space left on device"
    with full(folder), pytest.raises(CheckpointError, match=said):
        write(folder, trainer, 2)
    written = write(folder, trainer, 2)
    with full(folder), there_is_no_room():
        seal(written, trainer, ResumePoint(2, Cursor(2)), keep_last=1)
    assert step_of(newest(folder)) == 1
    seal(written, trainer, ResumePoint(2, Cursor(2)), keep_last=1)
    assert step_of(newest(folder)) == 2


def end(folder: Path) -> None:
    """A driver that fails on a full disk says why on the console, and ends."""
    from app import train

    run = begun(folder)
    with run.writer(), full(folder):
        train._log_to(run.driver_log)
        train.run = lambda config, run: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device", "x"))
        assert train._recorded(run, CONFIG) == 1
    assert run.state == "running"


def state(folder: Path) -> None:
    """A dead run is failed also where that cannot be written; it is written as soon as there is room."""
    run, jobs = begun(folder), Jobs(NOWHERE, folder)
    with full(folder):
        status = jobs.get(run.id).status()
        assert (str(status), run.state) == ("failed", "running")
        assert "could not be written" in (status.reason or ""), status.reason
        with pytest.raises(RunError, match=r"No space left on device\); free some space or make it writable"):
            jobs.resume(run.id)
    assert [str(one.status()) for one in jobs.list()] == ["failed"]
    assert run.state == "failed"


def read_only(folder: Path) -> None:
    """A run on a medium that cannot be written is listed and read; to go on with it is refused with the remedy."""
    run, jobs = begun(folder), Jobs(NOWHERE, folder)
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    assert [str(one.status()) for one in jobs.list()] == ["failed"]
    assert jobs.get(run.id).logs() == f"logs of run {run.id!r} are no longer available"
    assert read.run(folder, run.id)["state"] == "running"
    with pytest.raises(RunError, match=r"Read-only file system\); free some space or make it writable"):
        jobs.resume(run.id)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
