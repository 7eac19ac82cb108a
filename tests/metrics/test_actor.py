"""The real actor on a real, small Ray: killed and restarted, nothing is lost and nothing is counted twice."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metrics import actor, read
from metrics.recompute import recompute
from metrics.schema import samples_table, spans_table
from tests.metrics.builders import RANGES, group
from tests.own_ray import own_ray

pytestmark = pytest.mark.stack
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with own_ray() as ray:
        yield ray


def started(run_dir: Path, **given: Any) -> Any:
    environments = [{"name": "sums", "reward_min": 0.0, "reward_max": 1.0, "metrics_ranges": RANGES}]
    settings = {
        "name": f"metrics {run_dir.name}",
        "namespace": "test",
        "attempt": 1,
        "resume_step": 0,
        "config": {"algorithm": "grpo", "steps": 50},
        "environments": environments,
        "num_slots": 4,
        "wandb": None,
    }
    return actor.start(run_dir, **settings | given)


def rows(step: int):
    return samples_table(
        row | {"sample_id": 2 * step + i} for i, row in enumerate(group([0.0, 1.0], group_id=step, step=step))
    )


def spans(step: int):
    return spans_table(
        [{"step": step, "lane": "trainer 0", "kind": "step", "start_s": step - 1.0, "end_s": float(step)}]
    )


def kill(run_dir: Path) -> int:
    """SIGKILL for the process that writes the run; returns its id."""
    pid = json.loads((run_dir / "metrics" / "lock").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_killed_actor_comes_back_and_nothing_is_lost_or_doubled(ray, tmp_path):
    handle, killed = started(tmp_path), []
    for step in range(1, 13):
        handle.log_samples.remote("batcher", step, rows(step))
        answer = handle.log_step.remote(
            "trainer", step, step, {"tokens/trained": 8}, spans(step), 2 * step, ("batcher", step)
        )
        if step % 3 == 0:
            killed.append(kill(tmp_path))  # with messages on their way
        row = ray.get(answer, timeout=TIMEOUT_S)
        assert (row["reward_count"], row["ledger/trained"], row["ledger/in_flight"]) == (2.0, 2.0 * step, 0.0)
    # a sender that does not know whether its message arrived sends it again
    ray.get(handle.log_samples.remote("batcher", 12, rows(12)), timeout=TIMEOUT_S)
    assert (
        ray.get(handle.log_step.remote("trainer", 12, 12, {}, spans(12), 24), timeout=TIMEOUT_S)["ledger/started"]
        == 24.0
    )
    ray.get(handle.close.remote("finished"), timeout=TIMEOUT_S)
    assert len(set(killed)) == 4
    found = read.series(tmp_path)
    assert found["steps"] == list(range(1, 13))
    assert found["columns"]["timing_step_total"] == [1.0] * 12
    assert read.samples(tmp_path)[1] == 24
    assert (recompute(tmp_path).differences, found["damaged"]) == ([], [])


def test_a_step_waits_for_its_samples_for_a_bounded_time(ray, tmp_path, monkeypatch):
    handle = started(tmp_path)
    early = handle.log_step.remote("trainer", 1, 1, {}, spans(1), 2, ("batcher", 1))
    handle.log_samples.remote("batcher", 1, rows(1))
    assert ray.get(early, timeout=TIMEOUT_S)["reward_count"] == 2.0


def test_the_actor_writes_to_wandb_offline(ray, tmp_path):
    handle = started(tmp_path / "demo-1", wandb={"project": "telescope", "mode": "offline"})
    row = ray.get(handle.log_step.remote("trainer", 1, 1, {"entropy": 1.0}, spans(1), 0), timeout=TIMEOUT_S)
    ray.get(handle.close.remote("finished"), timeout=TIMEOUT_S)
    assert [item for item in row["checks"] if not item["ok"]] == []
    assert read.checks(tmp_path / "demo-1") == []
    (file,) = (tmp_path / "demo-1" / "wandb").glob("offline-run-*/*.wandb")
    assert b"entropy" in file.read_bytes()


def test_a_run_that_is_being_written_is_refused_when_the_actor_starts(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(actor, "LOCK_WAIT_S", 0.2)
    handle = started(tmp_path)
    with pytest.raises(Exception, match=r"is being written by pid \d+ on host"):
        started(tmp_path, name="another")
    ray.get(handle.close.remote("stopped"), timeout=TIMEOUT_S)


def test_the_wait_for_samples_ends_with_a_mark_on_the_step(tmp_path):
    """Without Ray: the class is plain, and the named time-out is what bounds it."""
    import asyncio

    settings = {"attempt": 1, "resume_step": 0, "config": {}, "environments": [], "num_slots": 1}
    one = actor.MetricsActor(str(tmp_path), settings)
    keep, actor.AFTER_TIMEOUT_S = actor.AFTER_TIMEOUT_S, 0.05
    try:
        row = asyncio.run(one.log_step("trainer", 1, 1, {}, spans(1), 0, ("batcher", 1)))
    finally:
        actor.AFTER_TIMEOUT_S = keep
    assert [item["check"] for item in row["checks"] if not item["ok"]] == ["samples_missing"]
