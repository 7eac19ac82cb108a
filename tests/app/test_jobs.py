import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.job_submission import JobStatus

from app import run_dir, train
from app.config import ConfigError, from_dict, load
from app.jobs import Jobs, Run, StopFailed, _unended
from app.ray_jobs import NoCluster
from app.run_dir import RunDir, RunError, RunNotFound
from metrics import read

DRIVER = "tests.app.stand_in_driver"
ELSEWHERE = "http://127.0.0.1:9"  # the discard port: nothing answers


def plan(name: str) -> dict:
    """A small valid configuration; the driver that stands in for training does what the name says."""
    return {
        "name": name,
        "model": "embedded",
        "steps": 3,
        "environments": [{"name": "sums", "reward_min": 0.0, "reward_max": 1.0}],
        "checkpoint_every": 1,
    }


@pytest.fixture
def jobs(ray_cluster, tmp_path) -> Jobs:
    return Jobs(address=ray_cluster.dashboard_url, root=tmp_path, driver=DRIVER)


@pytest.fixture
def offline(tmp_path) -> Jobs:
    return Jobs(address=ELSEWHERE, root=tmp_path, driver=DRIVER)


class Cluster:
    """A Ray that knows one job, which ends when it is looked at for the second time."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.looks = 0
        self.submitted: list[dict] = []

    def list_jobs(self) -> list[SimpleNamespace]:
        self.looks += 1
        status = JobStatus.FAILED if self.looks > 1 else JobStatus.RUNNING
        return [SimpleNamespace(submission_id=self.job_id, status=status, driver_info=None, entrypoint="")]

    def get_job_logs(self, job_id: str) -> str:
        return f"the last words of {job_id}" if self.looks > 1 else f"the first words of {job_id}"

    def submit_job(self, **wanted) -> str:
        self.submitted.append(wanted)
        return "another"

    def get_job_status(self, _job_id: str) -> JobStatus:
        return JobStatus.SUCCEEDED

    def get_address(self) -> str:
        return ELSEWHERE


@pytest.fixture
def ended(offline) -> tuple[Run, Cluster]:
    """A run that has just written that it failed; its job has not ended yet."""
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    directory.update(job_id=f"{directory.id}-1", cluster=ELSEWHERE)
    directory.end("failed", "a worker died")
    cluster = Cluster(f"{directory.id}-1")
    offline._known.append(cluster)
    return offline.get(directory.id), cluster


def until(state: str, run, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while run.status() != state:
        assert time.monotonic() < end, f"{run.status().sentence()}\n{run.logs()}"
        time.sleep(0.2)


def test_without_a_cluster_nothing_is_submitted_and_nothing_is_written(offline, tmp_path):
    with pytest.raises(NoCluster, match=r"no Ray cluster .* answers at http://127.0.0.1:9 .*ray start --head"):
        offline.submit(plan("finishes"))
    assert list(tmp_path.iterdir()) == []


def test_a_bad_configuration_is_refused_before_anything_is_asked_or_written(offline, tmp_path):
    with pytest.raises(ConfigError, match="stepps"):
        offline.submit({**plan("x"), "stepps": 4})
    with pytest.raises(ConfigError, match="steps"):
        offline.submit(plan("x"), ["steps=none"])
    with pytest.raises(RunError, match="runs are kept in"):
        offline.submit({**plan("x"), "runs_dir": "/somewhere/else"})
    assert list(tmp_path.iterdir()) == []


def test_a_log_cannot_command_the_terminal_of_its_reader(offline):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    directory.driver_log.write_text("one\x1b[31m red\x1b[0m\x07\ttab\ntwo\x1b]0;title\x07\n")
    run = offline.get(directory.id)
    assert run.logs() == "one red\ttab\ntwo]0;title\n"
    assert run.logs(tail=1) == "two]0;title"
    assert run.logs(tail=0) == ""


def test_a_clock_that_was_set_back_changes_no_state_no_order_and_makes_no_negative_time(offline):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    future_s = time.time() + 1e6
    for attempt, moment_s in ((9, future_s), (10, time.time())):
        file = directory.path / "logs" / f"job-{attempt}.log"
        file.write_text(f"attempt {attempt}")
        os.utime(file, (moment_s, moment_s))
    run = offline.get(directory.id)
    assert run.logs() == "attempt 10"
    directory.update(created_at=future_s, started_at=future_s)
    assert run.status().sentence() == "pending (Ray does not answer for it)"
    directory.end("finished")
    assert run.status() == "finished"
    assert read.run(offline.folder, directory.id)["elapsed_s"] == 0.0


def test_a_run_that_is_not_there(offline):
    with pytest.raises(RunNotFound, match="'nothing' is not in"):
        offline.get("nothing")
    with pytest.raises(RunError, match="not allowed"):
        offline.get("../x")


def test_a_run_whose_driver_waits_for_its_turn_is_pending_with_what_it_waits_for(offline):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    job = SimpleNamespace(status="RUNNING", message=None)
    assert _unended(directory.record(), job).sentence() == "starting"
    directory.update(reason="waits for its turn: 2 CPU wanted, 0 of 2 free")
    assert _unended(directory.record(), job).sentence() == "pending (waits for its turn: 2 CPU wanted, 0 of 2 free)"


def test_a_run_says_what_its_start_is_doing(offline):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    job = SimpleNamespace(status="RUNNING", message=None)
    directory.update(state="running")
    directory.enter("waiting for the engines")
    status = _unended(directory.record(), job)
    assert (status.phase, status.sentence()) == ("waiting for the engines", "running (waiting for the engines)")
    directory.enter(None)
    assert _unended(directory.record(), job).sentence() == "running"


def test_a_run_that_is_resumed_at_once_keeps_the_log_of_its_last_attempt(ended):
    run, cluster = ended
    run.jobs.resume(run)
    assert run.record()["attempt"] == 2
    assert (run.directory.path / "logs" / "job-1.log").read_text() == f"the last words of {cluster.job_id}"


def test_a_run_goes_on_with_other_workers_and_smaller_micro_batches(ended):
    run, cluster = ended
    before = load(run.directory.config_path)
    run.jobs.resume(run, ["num_workers=2", "engine.kv_cache_mb=64"])
    after = load(run.directory.config_path)
    assert (after.num_workers, after.engine.kv_cache_mb) == (2, 64)
    assert after.model_copy(update={"num_workers": 1, "engine": before.engine}) == before
    assert cluster.submitted[-1]["entrypoint"].endswith(f"{run.directory.path} --resume")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "learning_rate=1e-3",
            r"learning_rate.*: is 1e-06, got 0.001, and cannot change in a resumed run\n  start a new run",
        ),
        ("environments.0.weight=2", r"run \S+:\n  environments.0.weight: is 1.0, got 2.0, and cannot change"),
        ("seq_len=1", "seq_len"),
        ("num_worker=2", "num_workers"),
    ],
)
def test_a_change_that_is_refused_leaves_the_run_as_it_was(ended, change, said, capsys):
    run, cluster = ended
    before = (run.record(), run.directory.config_path.read_text())
    with pytest.raises(ConfigError, match=said):
        run.jobs.resume(run, [change])
    assert train.main(["--run-dir", str(run.directory.path), "--resume", change]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert (run.record(), run.directory.config_path.read_text()) == before
    assert cluster.submitted == []


def test_of_two_resumes_from_a_shell_at_once_the_second_changes_nothing(ended, monkeypatch, capsys):
    run, _ = ended
    directory = run.directory
    # The other one is first, after the second has looked at the state.
    monkeypatch.setattr(RunDir, "check_writable", lambda directory: directory.reopen())
    assert train.main(["--run-dir", str(directory.path), "--resume", "num_workers=2"]) == 2
    assert "has just been resumed by another process; nothing was changed" in capsys.readouterr().err
    assert (directory.record()["attempt"], directory.state) == (2, "pending")
    assert load(directory.config_path).num_workers == 1


def test_a_run_that_has_not_begun_is_not_changed(offline, capsys):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    assert train.main(["--run-dir", str(directory.path), "--resume", "num_workers=2"]) == 2
    assert "has not begun, and only what is resumed can be changed" in capsys.readouterr().err


def test_of_two_resumes_at_once_the_second_removes_nothing_of_the_first(ended, monkeypatch):
    run, cluster = ended
    # The other one is first.
    monkeypatch.setattr(RunDir, "check_resumable", lambda directory, config: directory.reopen())
    with pytest.raises(RunError, match="is pending; only an ended run can be resumed"):
        run.jobs.resume(run)
    assert cluster.submitted == []


@pytest.mark.parametrize(
    ("cluster", "printed", "reason"),
    [
        (ELSEWHERE, "", rf"is gone, and the Ray cluster at {ELSEWHERE} with it: resume the run"),
        (None, "", "ended without saying why$"),
        (None, "step 1\n", "ended without saying why; see the log$"),
    ],
)
def test_a_driver_that_is_gone_is_said_with_what_went_with_it(offline, cluster, printed, reason):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    with directory.writer():
        directory.update(state="running", cluster=cluster)
    directory.driver_log.write_text(printed)
    assert re.search(reason, offline.get(directory.id).status().reason)


@pytest.mark.stack
def test_a_run_goes_from_submission_to_its_end(jobs):
    run = jobs.submit(plan("finishes"), ["steps=5"])
    assert run.wait(60) == "finished"
    record = run.record()
    assert (record["steps"], record["attempt"], record["job_id"]) == (5, 1, f"{run.id}-1")
    assert f"driver of {run.id}, resume=False" in run.logs()
    assert run.logs(tail=1).count("\n") == 0
    assert [known.id for known in jobs.list()] == [run.id]


@pytest.mark.stack
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("raises", "the reward of environment 'sums' cannot be imported"),
        ("says-nothing", "its driver ended without writing a final state"),
    ],
)
def test_a_driver_that_wrote_no_end_is_failed_with_its_reason(jobs, behaviour, reason):
    run = jobs.submit(plan(behaviour))
    assert run.wait(60) == "failed"
    assert reason in run.status().reason
    assert run.record()["ended_at"] > run.record()["started_at"]


def test_a_finished_run_is_not_resumed_and_stays_finished(offline):
    directory = run_dir.create_for(from_dict(plan("x")), offline.folder)
    directory.end("finished")
    with pytest.raises(RunError, match=r"has finished all of its 3 steps, nothing is left to resume; .* more steps"):
        offline.resume(directory.id)
    assert train.main(["--run-dir", str(directory.path), "--resume"]) == 2
    assert (directory.state, directory.record()["attempt"]) == ("finished", 1)


@pytest.mark.stack
def test_a_run_that_writes_no_checkpoints_is_not_resumed(jobs):
    run = jobs.submit(plan("raises"), ["checkpoint_every=0"])
    assert run.wait(60) == "failed"
    with pytest.raises(RunError, match=r"no checkpoint to go on from \(checkpoint_every is 0\); start it again"):
        jobs.resume(run)


@pytest.mark.stack
def test_a_killed_driver_is_failed_cleaned_up_and_resumed(jobs):
    import ray
    from ray import serve
    from ray.util import list_named_actors

    run = jobs.submit(plan("is-killed"))
    assert run.wait(120) == "failed"
    assert run.status().reason.startswith("its driver was killed (signal 9): resume the run")
    assert f"policy-{run.id}" not in serve.status().applications
    assert [a for a in list_named_actors(all_namespaces=True) if a["namespace"] == f"telescope-{run.id}"] == []
    assert ray.is_initialized()

    assert jobs.resume(run.id).wait(60) == "finished"
    assert (run.record()["attempt"], run.record()["job_id"]) == (2, f"{run.id}-2")
    assert f"driver of {run.id}, resume=True" in run.logs()
    with pytest.raises(RunNotFound):
        jobs.resume("another")


@pytest.mark.stack
def test_stopping_is_reported_when_it_is_done_and_twice_is_fine(jobs):
    run = jobs.submit(plan("works"))
    until("running", run)
    with pytest.raises(RunError, match="is running; only an ended run can be resumed"):
        jobs.resume(run)
    pid = run.record()["pid"]
    assert run.stop() == "stopped"
    assert not Path(f"/proc/{pid}").exists()
    ended_at = run.record()["ended_at"]
    assert (run.stop(), run.status().reason) == ("stopped", "stopped on request")
    assert run.record()["ended_at"] == ended_at


@pytest.mark.stack
def test_a_run_that_came_through_ray_job_submit_is_stopped_like_any_other(jobs):
    directory = run_dir.create_for(from_dict(plan("connects")), jobs.folder)
    words = [sys.executable, "-m", DRIVER, "--run-dir", str(directory.path)]
    submitted = jobs.client().submit_job(entrypoint=shlex.join(words))
    run = jobs.get(directory.id)
    until("running", run)
    while jobs.client().get_job_info(submitted).driver_info is None:
        time.sleep(0.2)
    assert run.record()["job_id"] is None
    assert run.stop() == "stopped"
    assert jobs.client().get_job_status(submitted) == "STOPPED"


@pytest.mark.stack
def test_a_stop_that_did_not_stop_is_not_called_stopped(jobs):
    run = jobs.submit(plan("deaf"))
    until("running", run)
    with pytest.raises(StopFailed, match=r"is still running after 2 s"):
        run.stop(timeout_s=2)
    assert run.status() == "running"
    os.kill(run.record()["pid"], 9)
    assert run.wait(60) == "stopped"


@pytest.mark.stack
def test_a_run_that_waits_for_what_is_not_there_says_so_and_can_be_removed(jobs, monkeypatch):
    monkeypatch.setattr("app.jobs.NEVER_STARTED_S", 0.0)
    run = jobs.submit(plan("finishes"), resources={"accelerator_of_tomorrow": 1})
    time.sleep(2)
    assert run.status() == "pending"
    assert "waiting for resources" in run.status().reason
    assert run.status().reason.startswith("not started after")
    assert run.stop() == "stopped"
    assert run.status().reason == "stopped on request"


@pytest.mark.stack
def test_after_the_cluster_is_gone_states_and_logs_are_still_right(jobs, offline):
    ended, died = jobs.submit(plan("finishes")), jobs.submit(plan("works"))
    assert ended.wait(60) == "finished"
    until("running", died)
    assert offline.get(died.id).status() == "running"  # the lock of its driver is held
    os.kill(died.record()["pid"], 9)
    time.sleep(0.5)
    assert {run.id: str(run.status()) for run in offline.list()} == {ended.id: "finished", died.id: "failed"}
    assert "ended without saying why" in offline.get(died.id).status().reason
    assert f"driver of {ended.id}" in offline.get(ended.id).logs()
    assert "no longer available" in offline.get(died.id).logs()


@pytest.mark.stack
def test_a_damaged_record_does_not_hide_the_other_runs(jobs):
    good, bad = jobs.submit(plan("finishes")), jobs.submit(plan("finishes"))
    good.wait(60), bad.wait(60)
    (bad.directory.path / "run.json").write_text('{"id":')
    assert {run.id for run in jobs.list()} == {good.id, bad.id}
    with pytest.raises(RunError, match="not readable"):
        bad.status()
    assert json.loads((good.directory.path / "run.json").read_text())["state"] == "finished"
