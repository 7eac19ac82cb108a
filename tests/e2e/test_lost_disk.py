"""A run whose machine is lost, disk and all: it goes on elsewhere from its copy in an object store."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pyarrow import fs
from ray import serve
from ruamel.yaml import YAML

from app.config import load
from app.run_dir import RunDir, application_of
from metrics import read
from metrics.recompute import recompute
from tests import s3
from tests.e2e.test_runs import small_run

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

STEPS = 120
KEPT = {"checkpoint_every": 10, "keep_last": 12}
"""None is removed: a pass of the copy may take longer than ten steps."""
TWO_WORKERS = ["num_workers=2", "cpus_per_worker=0.2"]
MIRROR = "s3://telescope/runs"
COPY_LIMIT_S = 200
GONE_LIMIT_S = 60
RESUME_LIMIT_S = 400


def until(is_so: Callable[[], bool], limit_s: float, what: str) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        time.sleep(0.5)


def sealed_in(store: fs.FileSystem, run_id: str) -> list[str]:
    """The checkpoints of the run that are whole in its copy."""
    found = store.get_file_info(
        fs.FileSelector(f"telescope/runs/{run_id}/checkpoints", allow_not_found=True, recursive=True)
    )
    return sorted(one.path.split("/")[-2] for one in found if one.path.endswith("place.json"))


def written(folder: Path) -> str:
    file = folder / "run.yaml"
    with file.open("w") as out:
        YAML().dump(small_run(name="lost", steps=STEPS, mirror=MIRROR, **KEPT), out)
    return str(file)


def python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def killed_once_copied(config: str, runs: Path, store: fs.FileSystem) -> str:
    """Starts the run and kills its driver as soon as the copy has a whole checkpoint; returns the run's id."""
    driver = subprocess.Popen(python("app.train", config), env=os.environ | {"TELESCOPE_RUNS": str(runs)})

    def is_over_or(is_so: Callable[[], object]) -> Callable[[], bool]:
        return lambda: driver.poll() is not None or bool(is_so())

    try:
        until(is_over_or(lambda: any(runs.glob("lost-*"))), COPY_LIMIT_S, "a run directory")
        [path] = runs.glob("lost-*")
        until(is_over_or(lambda: sealed_in(store, path.name)), COPY_LIMIT_S, "a checkpoint in the copy")
        assert driver.poll() is None, f"the run ended first: {RunDir(path).record()}"
    finally:
        driver.kill()
        driver.wait(timeout=GONE_LIMIT_S)
    return path.name


def test_a_run_goes_on_elsewhere_from_its_copy_with_another_number_of_workers(ray_cluster, serve_url, tmp_path):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    with s3.server():
        run_id = killed_once_copied(written(tmp_path), first, s3.make_bucket("telescope"))
        until(lambda: application_of(run_id) not in serve.status().applications, GONE_LIMIT_S, "the engines' end")
        shutil.rmtree(first)
        fetching = python("app.mirror", f"{MIRROR}/{run_id}")
        told = subprocess.run([*fetching, str(second)], capture_output=True, text=True, check=True).stdout
        assert 0 < read.series(second / run_id)["last_step"] < STEPS
        command = told.splitlines()[-1].removeprefix("resume it with: python ")
        resuming = [sys.executable, *shlex.split(command), *TWO_WORKERS]
        subprocess.run(resuming, check=True, timeout=RESUME_LIMIT_S)
        subprocess.run([*fetching, str(third)], capture_output=True, check=True)
    run = RunDir(second / run_id)
    assert (run.state, run.record()["attempt"]) == ("finished", 2)
    assert load(run.config_path).num_workers == 2
    check_every_step_once(run)
    assert read.series(third / run_id) == read.series(run.path)
    assert RunDir(third / run_id).record() == run.record()
    assert not first.exists()


def check_every_step_once(run: RunDir) -> None:
    series = read.series(run.path)
    trained = zip(series["steps"], series["columns"]["reward_mean"], strict=True)
    assert [step for step, reward in trained if reward is not None] == list(range(1, STEPS + 1))
    assert recompute(run.path).differences == []
    rows = read.samples(run.path, limit=100_000)[0]
    groups = rows.group_by("group_id").agg(pl.col("step").n_unique(), pl.len())
    assert sorted(groups["group_id"]) == list(range(len(groups)))
    assert set(groups["step"]) == {1}
    assert set(groups["len"]) == {4}
