"""Start, watch, stop and resume runs, from any program: `Jobs().submit("configs/demo.yaml").wait()`.

A run is a Ray job whose driver is `python -m app.train --run-dir DIR`. What is true about it stands in its run
directory; Ray is asked for what the directory cannot know: that a driver died, or never started. Whoever notices
that first writes it down, after removing what the run left on the cluster.
"""

import contextlib
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import config as configs
from app import ray_jobs, run_dir
from app.failure import reason_of_job
from app.run_dir import FINAL, Record, RunDir, RunError

if TYPE_CHECKING:
    import polars as pl

POLL_S = 0.5
STOP_GRACE_S = 30  # what a driver has, after SIGTERM, to take down its engines and close its metrics
LOG_LIMIT_S = 15.0
NEVER_STARTED_S = 60.0
DRIVER = "app.train"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Status(str):
    """The state of a run as a string, with `reason`: why it failed, was stopped, or has not started yet; and `phase`:
    what its start is doing."""

    reason: str | None
    phase: str | None

    def __new__(cls, state: str, reason: str | None = None, phase: str | None = None) -> "Status":
        status = super().__new__(cls, state)
        status.reason = reason
        status.phase = phase
        return status

    @property
    def final(self) -> bool:
        return str(self) in FINAL

    def sentence(self) -> str:
        why = self.reason or self.phase
        return f"{self} ({why})" if why else str(self)


class StopFailed(RuntimeError):
    """A run was asked to stop and did not within the time given."""


@dataclass(frozen=True)
class Jobs:
    """The runs under one root and the Ray cluster that runs them."""

    address: str | None = None
    root: Path | str | None = None
    driver: str = DRIVER
    _known: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def folder(self) -> Path:
        return run_dir.root_of(self.root)

    def submit(
        self,
        config: configs.Config | Mapping[str, Any] | str | Path,
        overrides: Sequence[str] = (),
        resources: Mapping[str, float] | None = None,
    ) -> "Run":
        """Check the configuration, make the run directory and queue the run.

        `resources` are reserved for the driver itself (`{"CPU": 1}` or custom ones); it waits until they are free.
        """
        checked = _checked(config, overrides)
        where = self._root_for(checked)
        client = self.client()  # before anything is written: without a cluster there is no run
        run = Run(self, run_dir.create_for(checked, where))
        run._launch(client, resume=False, resources=resources)
        return run

    def list(self) -> list["Run"]:
        """All runs, newest first, with the states of dead ones put right."""
        runs = [Run(self, directory) for directory in run_dir.list_runs(self.folder)]
        known = self._jobs_of_ray()
        for run in runs:
            with contextlib.suppress(RunError):  # a damaged run.json is reported by the run itself
                run._settle(known)
        return runs

    def get(self, run_id: str) -> "Run":
        return Run(self, run_dir.open_run(self.folder, run_id))

    def resume(
        self, run: "Run | str", overrides: Sequence[str] = (), *, resources: Mapping[str, float] | None = None
    ) -> "Run":
        """Go on with a run that was stopped or failed, in its own directory, from its last checkpoint.

        `overrides` change what it runs on, as `num_workers=2` or `seq_len=1024` (`app.config.RESUMABLE`).
        """
        run = self.get(run) if isinstance(run, str) else run
        _check_ended(run.id, run.status())
        config = configs.resumed(run.directory.config_path, overrides)
        run.directory.check_resumable(config)
        run.directory.check_writable()
        client = self.client()
        with run.directory.settling():
            _check_ended(run.id, run.directory.state)  # else another resume was first: cleaning would hit its attempt
            run._await_log()  # the next attempt is another job
            run._clean(client)
            run.directory.reopen(configs.dump(config) if overrides else None)
        run._launch(client, resume=True, resources=resources)
        return run

    def client(self) -> Any:
        """The Ray Jobs client; NoCluster when none answers."""
        if not self._known:
            self._known.append(ray_jobs.connect(self.address))
        return self._known[0]

    def _jobs_of_ray(self) -> dict[str, Any] | None:
        """Ray's view of all jobs by id; None when no cluster answers."""
        try:
            return {job.submission_id: job for job in self.client().list_jobs() if job.submission_id}
        except (OSError, RuntimeError):  # NoCluster, a failed connection, an answer that is an error
            self._known.clear()
            return None

    def _root_for(self, config: configs.Config) -> Path:
        if self.root is None:
            return run_dir.root_of(config.runs_dir)
        if config.runs_dir is not None and run_dir.root_of(config.runs_dir) != self.folder:
            raise RunError(f"runs_dir {config.runs_dir!r}: runs are kept in {self.folder} here; leave it out")
        return self.folder


@dataclass(frozen=True)
class Run:
    """One run. Every answer is read when asked."""

    jobs: Jobs
    directory: RunDir

    @property
    def id(self) -> str:
        return self.directory.id

    def record(self) -> Record:
        return self.directory.record()

    def status(self) -> Status:
        """The state, put right when the driver died without writing it."""
        record = self.record()
        if record["state"] in FINAL:
            return Status(record["state"], record["reason"])
        return self._settle(self.jobs._jobs_of_ray())

    def wait(self, timeout_s: float | None = None) -> Status:
        """Wait for the final state; TimeoutError when it is not reached in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not (status := self.status()).final:
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"run {self.id!r} is still {status.sentence()} after {timeout_s} s")
            time.sleep(POLL_S)
        self._await_log()
        return status

    def stop(self, timeout_s: float = STOP_GRACE_S + 30, *, cleanup: bool = True) -> Status:
        """Stop the run and return its final state, read after it was reached. An ended run stays as it is.

        `cleanup` removes what a driver that had to be killed left on the cluster.
        """
        if (status := self.status()).final:
            return status
        client = self.jobs.client()
        record = self.record()
        job = self._job(record, self.jobs._jobs_of_ray())
        if job is None:
            raise StopFailed(f"run {self.id!r} was not started on this cluster; end {_whose(record)} instead")
        job_id = job.submission_id
        with _where_writable():  # Ray calls the job stopped anyway
            self.directory.update(stop_requested=True)
        client.stop_job(job_id)
        if job.status == "PENDING":
            self._clean(client, pending_job=job_id)  # a job without a driver does not hear the request
        self._await_end(client, job_id, timeout_s)
        status = self.status()
        if cleanup:
            with self.directory.settling():
                if self.record()["attempt"] == record["attempt"]:  # else it was resumed meanwhile
                    self._clean(client)
        return status

    def _await_end(self, client: Any, job_id: str, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not client.get_job_status(job_id).is_terminal():
            if time.monotonic() > end:
                raise StopFailed(
                    f"run {self.id!r} was asked to stop and is still {self.status().sentence()} after {timeout_s} s"
                )
            time.sleep(POLL_S)

    def logs(self, tail: int | None = None) -> str:
        """What the driver printed. Kept in the run directory once the run has ended."""
        found = self._log_of_ray() or self._kept_log()
        if found is None:
            return f"logs of run {self.id!r} are no longer available"
        text = _CONTROL.sub("", found)  # what a model or a dataset wrote must not command the reader's terminal
        return text if tail is None else "\n".join(text.splitlines()[-tail:]) if tail > 0 else ""

    def metrics(self, keys: Sequence[str] | None = None, since: int | None = None) -> dict[str, Any]:
        """Columns of the steps after `since` (of all when left out), as `metrics.read.series` gives them."""
        from metrics import read

        return read.series(self.directory.path, keys=keys, since=since)

    def samples(self, **conditions: Any) -> "tuple[pl.DataFrame, int]":
        """Rollouts that meet the conditions of `metrics.read.samples`, and how many there are in all."""
        from metrics import read

        return read.samples(self.directory.path, **conditions)

    def _launch(self, client: Any, *, resume: bool, resources: Mapping[str, float] | None) -> None:
        job_id = f"{self.id}-{self.record()['attempt']}"
        words = ["exec", sys.executable, "-m", self.jobs.driver, "--run-dir", str(self.directory.path)]
        environment = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_GRACE_S), "TELESCOPE_JOB_ID": job_id}
        custom = dict(resources or {})
        with self.directory.settling():  # until Ray knows the job, nobody may conclude that it has lost it
            self.directory.update(job_id=job_id, cluster=client.get_address())
            try:
                client.submit_job(
                    entrypoint=shlex.join(words + (["--resume"] if resume else [])),
                    submission_id=job_id,
                    metadata={"run": self.id},
                    runtime_env={"env_vars": environment},
                    entrypoint_num_cpus=custom.pop("CPU", None),
                    entrypoint_num_gpus=custom.pop("GPU", None),
                    entrypoint_resources=custom or None,
                )
            except (OSError, RuntimeError) as error:
                self.directory.end("failed", f"it could not be submitted: {error}")
                raise

    def _settle(self, known: Mapping[str, Any] | None) -> Status:
        """Compare the directory with Ray's view and write down an end that the driver could not."""
        record = self.record()
        if record["state"] not in FINAL:
            job = self._job(record, known)
            ended = self._end(record, job, known)
            if ended is None:
                return _unended(record, job)
            with _where_writable():
                self._end_for_good()
            if (record := self.record())["state"] not in FINAL:
                return Status(ended[0], f"{ended[1]}; this could not be written into {self.directory.path}")
        record = self.record()
        self._keep_log(record, known)
        return Status(record["state"], record["reason"])

    def _end_for_good(self) -> None:
        """Decides again with fresh facts, since a submission may have been under way, and writes the end down."""
        with self.directory.settling():
            record, known = self.record(), self.jobs._jobs_of_ray()
            ended = self._end(record, self._job(record, known), known)
            if record["state"] in FINAL or ended is None:
                return
            if known is not None:
                self._clean(self.jobs.client())
            self.directory.end(*ended)

    def _end(self, record: Record, job: Any, known: Mapping[str, Any] | None) -> tuple[str, str] | None:
        """How the run ended, as far as the directory does not say; None while it has not."""
        if job is not None:
            return _end_of(job, record["stop_requested"])
        return self._end_without_ray(record, known)

    def _job(self, record: Record, known: Mapping[str, Any] | None) -> Any:
        """Ray's job of the run; of one that came through `ray job submit`, the job whose driver writes the run."""
        for job in (known or {}).values():
            ours = record["job_id"] is None and job.driver_info is not None and self.jobs.driver in job.entrypoint
            if job.submission_id == record["job_id"] or (ours and job.driver_info.pid == str(record["pid"])):
                return job
        return None

    def _end_without_ray(self, record: Record, known: Mapping[str, Any] | None) -> tuple[str, str] | None:
        """How a run ended that Ray does not know, told by the lock of its driver; None while it may be alive."""
        if ended := self.directory.unsaid_end(record):
            state, reason = ended
            return state, self._explained(reason, record) if state == "failed" else reason
        if self.directory.has_writer():
            return None
        if record["job_id"] is None:
            return None  # started by hand, on another machine or a moment ago
        if known is not None and record["cluster"] == self.jobs.client().get_address():
            return "failed", "the Ray cluster does not know its job any more"
        if record["pid"] is None and _unreachable(record["cluster"]):
            return "failed", f"it never started, and the Ray cluster at {record['cluster']} is gone"
        return None

    def _explained(self, reason: str, record: Record) -> str:
        """The reason of an end that nobody wrote down, with what else is known of it."""
        if record["cluster"] is not None and _unreachable(record["cluster"]):
            return (
                f"its driver (pid {record['pid']}) is gone, and the Ray cluster at {record['cluster']} with it: "
                "resume the run to go on from its last checkpoint"
            )
        return reason + ("; see the log" if self._kept_log() else "")

    def _clean(self, client: Any, pending_job: str | None = None) -> None:
        """Remove what the run left on the cluster, from here when connected to it, else by a job."""
        from app import cleanup

        if ray_jobs.is_connected_to(client):
            cleanup.clean(self.id, pending_job)
            return
        words = ["exec", sys.executable, "-m", "app.cleanup", self.id]
        job_id = client.submit_job(
            entrypoint=shlex.join(words + (["--pending-job", pending_job] if pending_job else [])),
            metadata={"cleanup_of": self.id},
        )
        end = time.monotonic() + 60
        while not client.get_job_status(job_id).is_terminal():
            if time.monotonic() > end:
                raise TimeoutError(f"cleaning up after run {self.id!r} (Ray job {job_id}) took longer than 60 s")
            time.sleep(POLL_S)
        if client.get_job_status(job_id) != "SUCCEEDED":
            raise RuntimeError(f"cleaning up after run {self.id!r} failed:\n{client.get_job_logs(job_id)[-2000:]}")

    def _log_of_ray(self) -> str | None:
        job_id = self.record()["job_id"]
        if job_id is None:
            return None
        try:
            return self.jobs.client().get_job_logs(job_id) or None
        except (OSError, RuntimeError):  # no cluster, or the node that had the log is gone
            return None

    def _kept_log(self) -> str | None:
        kept = sorted(self.directory.path.glob("logs/job-*.log"), key=_attempt_of)  # not by time: clocks are set back
        for file in [*reversed(kept), self.directory.driver_log]:
            if file.is_file() and not file.is_symlink():
                return file.read_text(encoding="utf-8", errors="replace")
        return None

    def _await_log(self) -> None:
        """A driver writes its end a moment before it is gone; its log is whole when Ray calls the job ended."""
        end = time.monotonic() + LOG_LIMIT_S
        while time.monotonic() < end:
            known = self.jobs._jobs_of_ray()
            job = self._job(self.record(), known)
            if job is None or job.status.is_terminal():
                self._keep_log(self.record(), known)
                return
            time.sleep(POLL_S)

    def _keep_log(self, record: Record, known: Mapping[str, Any] | None) -> None:
        """Copy the driver's output beside the run, because Ray forgets it with the cluster."""
        file = self.directory.path / "logs" / f"job-{record['attempt']}.log"
        job = self._job(record, known)
        if job is None or not job.status.is_terminal() or file.exists():
            return
        if text := self._log_of_ray():
            with _where_writable():  # Ray still has it
                run_dir.write_atomically(file, text)


def _check_ended(run_id: str, state: str) -> None:
    if state not in FINAL:
        raise RunError(f"run {run_id!r} is {state}; only an ended run can be resumed")


def _attempt_of(log: Path) -> int:
    number = log.stem.removeprefix("job-")
    return int(number) if number.isdecimal() else -1


def _checked(config: configs.Config | Mapping[str, Any] | str | Path, overrides: Sequence[str]) -> configs.Config:
    if isinstance(config, str | Path):
        return configs.load(config, overrides)
    if isinstance(config, Mapping):
        return configs.from_dict(config, overrides)
    if overrides:
        return configs.from_dict(config.model_dump(), overrides)
    return config


@contextlib.contextmanager
def _where_writable() -> Iterator[None]:
    """For notes that may be missing: a full disk or a read-only copy must not hide what is true about a run."""
    try:
        yield
    except OSError as error:
        if not run_dir.cannot_write(error):
            raise


def _end_of(job: Any, stop_requested: bool) -> tuple[str, str] | None:
    """How a job ended whose driver wrote no final state; None while it has not ended."""
    status = str(job.status.value)
    never_ran = status == "FAILED" and job.driver_exit_code is None
    if status == "STOPPED" or (stop_requested and never_ran):
        return "stopped", "stopped on request"
    if status == "SUCCEEDED":
        return "failed", "its driver ended without writing a final state"
    if status == "FAILED":
        return "failed", reason_of_job(job.message or "the Ray job failed without a message")
    return None


def _unended(record: Record, job: Any) -> Status:
    """The status of a run that has not ended. A job that runs before its driver says so is starting, unless the
    driver says that it waits for its turn."""
    waited_s = time.time() - record["created_at"]
    if job is not None and job.status == "RUNNING" and record["state"] == "pending":
        return Status("pending" if record["reason"] else "starting", record["reason"])
    if record["state"] != "pending":
        return Status(record["state"], record["reason"], record["phase"])
    why = job.message if job is not None else "Ray does not answer for it"
    if record["attempt"] == 1 and waited_s > NEVER_STARTED_S:
        why = f"not started after {waited_s:.0f} s: {why} Stop the run to remove it from the queue."
    return Status("pending", why)


def _whose(record: Record) -> str:
    return f"pid {record['pid']} on {record['host']}" if record["pid"] else "the process that started it"


def _unreachable(cluster: str | None) -> bool:
    if cluster is None:
        return True
    try:
        ray_jobs.connect(cluster)
    except ray_jobs.NoCluster:
        return True
    return False
