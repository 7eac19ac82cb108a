import errno
import os
import re
import time
import traceback

import pytest

from app.failure import reason_of, reason_of_job, shortage
from tests.own_ray import own_ray

DIED = """Training failed due to worker errors:
[Rank 1 Error Snippet]:
A worker health check failed.
Worker info: pid=4711, rank=1
The actor died unexpectedly before finishing this task.
\tclass_name: RayTrainWorker
\tactor_id: 0c1fe05f1c4cf1b8ae7e0c8d01000000
\tpid: 4711
\tnamespace: 1a2b
\tip: 127.0.0.1
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process \
is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed \
unexpectedly due to SIGSEGV or other unexpected errors."""


HEAD = "Job entrypoint command failed with exit code {}, last available logs (truncated to 20,000 chars):\n"
LOG = """2026-11-30 12:31:50,998\tINFO job_manager.py:581 -- Runtime env is setting up.
Running entrypoint for job x-3: exec /venv/bin/python -m app.train --run-dir /runs/x --resume
run directory: /runs/x
{}
INFO 2026-11-30 12:32:00,898 serve 22884 -- Connecting to existing Serve app in namespace "serve".
\x1b[36m(ServeController pid=29006)\x1b[0m INFO 2026-11-30 12:32:01,045 controller 29006 -- Adding 1 replica.
\x1b[36m(MapWorker(MapBatches(Rollout)) pid=13868)\x1b[0m INFO 2026-11-30 12:28:16,190 serve 13868 -- Started.
\x1b[36m(JobSupervisor pid=16447)\x1b[0m Task was destroyed but it is pending!
\x1b[33m(raylet)\x1b[0m WARNING: 34 PYTHON worker processes have been started on node: ca81508a, which is 17x the \
maximum expected startup concurrency (2). This could be a result of using a large number of actors, \
tasks blocked in ray.get() calls. A worker died unexpectedly.
"""


def test_the_reason_is_the_innermost_error():
    text = "Training failed:\n[Rank 0]:\nTraceback\n  File x\nValueError: too long\nsome more\n"
    assert reason_of(RuntimeError(text)) == "ValueError: too long"
    assert reason_of(KeyError()) == "KeyError: no message"


def test_a_process_that_ended_without_a_word_is_named_and_not_by_all_that_it_might_have_been():
    assert reason_of(RuntimeError(DIED)) == (
        "RayTrainWorker (pid 4711) died unexpectedly; it was killed or crashed; if the operating system did it for "
        "want of memory, lower engine.kv_cache_mb, num_engines, num_workers or seq_len, or use a machine with more "
        "memory"
    )
    assert reason_of_job(f"Job supervisor actor died: {DIED}") == reason_of(RuntimeError(DIED))


def test_of_a_driver_that_could_not_say_why_the_last_lines_of_its_log_are_the_reason():
    log = "\n".join(f"line {number}\n" for number in range(30))
    assert reason_of_job(HEAD.format(1) + log).splitlines() == [f"line {number}" for number in range(18, 30)]
    full = reason_of_job(HEAD.format(1) + "OSError: [Errno 28] No space left on device: 'x'")
    assert full.endswith("'x'\nthe disk is full: free some space, then resume the run")


def test_a_killed_driver_is_one_sentence_without_its_log():
    assert reason_of_job(HEAD.format(-9) + LOG.format("ValueError: of a sample")) == (
        "its driver was killed (signal 9): resume the run to go on from its last checkpoint; if the operating system "
        "did it for want of memory, lower engine.kv_cache_mb, num_engines, num_workers or seq_len, or use a machine "
        "with more memory"
    )


def test_lines_of_other_processes_and_colours_are_no_reason():
    said = "\x1b[31mthe configuration of run 'x' is damaged\x1b[0m"
    assert reason_of_job(HEAD.format(2) + LOG.format(said)) == "the configuration of run 'x' is damaged"
    cut = "x" * 20_000 + ", and the end of a line of another process\n"
    assert reason_of_job(HEAD.format(2) + cut + said) == "the configuration of run 'x' is damaged"
    assert reason_of_job(HEAD.format(2) + LOG.format("")) == (
        "its driver ended with exit code 2 without saying why; see the log"
    )


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", "lower seq_len"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you", "lower engine.kv_cache_mb"),
        ("MemoryError", "the machine is out of memory: lower engine.kv_cache_mb"),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            "the machine is out of memory: lower engine.kv_cache_mb",
        ),
        (
            "ValueError: To serve at least one request with the model's max seq len (4096), (0.50 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.01 GiB).",
            "raise engine.kv_cache_mb",
        ),
        ("ValueError: No available memory for the cache blocks. Try", "raise engine.kv_cache_mb"),
        ("ValueError: Free memory on device cuda:0 (1/80 GiB) on startup", "lower engine.gpu_memory_utilization"),
        ("ray.exceptions.ObjectStoreFullError: Failed to put", "--object-store-memory"),
    ],
)
def test_what_ran_out_is_said_with_what_to_change(text, remedy):
    said = reason_of(RuntimeError(f"[Rank 0]:\nTraceback\n{text}"))
    assert text.split("\n")[0].split(":")[-1].strip()[:20] in said
    assert remedy in said.split("; ", 1)[1]


def test_a_shortage_behind_another_error_is_found():
    outer = RuntimeError("the step could not be stored")
    outer.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/x/metrics")
    assert reason_of(outer) == (
        "RuntimeError: the step could not be stored; the disk is full: free some space, then resume the run"
    )


def test_an_error_that_is_no_shortage_gets_no_advice():
    assert shortage("ZeroDivisionError: memory of a division, killed") is None


def passed_on(error: BaseException, name: str) -> BaseException:
    """The error as the caller of a Ray task gets it."""
    from ray.exceptions import RayTaskError

    text = "".join(traceback.format_exception(error))
    return RayTaskError(name, text, error, f"ray::{name}", 1, "127.0.0.1").as_instanceof_cause()


def failed_in_the_stream(text: str) -> BaseException:
    """What Ray Train raises in the driver when a stage of Ray Data failed with a RuntimeError of this text."""
    from ray.data._internal.planner.plan_udf_map_op import _try_wrap_udf_exception
    from ray.exceptions import UserCodeException
    from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
    from ray.train.v2._internal.execution.worker_group import poll

    error: BaseException = RuntimeError(text)
    try:
        try:
            raise error
        except RuntimeError as raised:
            _try_wrap_udf_exception(raised)
    except UserCodeException as wrapped:
        error = wrapped
    for name in ("MapWorker(MapBatches(Batcher)).submit", "SplitCoordinator.get"):
        error = passed_on(error, name)
    failed = UserExceptionWithTraceback(error, "".join(traceback.format_exception(error)))
    status = poll.WorkerStatus(running=False, error=failed)
    return poll.WorkerGroupPollStatus({0: status}).get_worker_group_error()


def test_the_reason_of_a_run_is_the_error_of_the_stage_and_not_what_ray_wraps_it_in(tmp_path, monkeypatch):
    from app import run_dir, train
    from app.config import from_dict

    config = from_dict({"name": "x", "model": "embedded", "steps": 1, "environments": [{"name": "sums"}]})
    directory = run_dir.create_for(config, tmp_path)
    why = "no sample could be trained in 3 steps; the most common reason: all rewards of its group are equal"

    monkeypatch.setattr("ray.train.v2._internal.execution.worker_group.poll.ERR_CHAR_LIMIT", 300)
    error = failed_in_the_stream(why)
    assert why not in str(error)

    def fails(*_):
        raise error

    monkeypatch.setattr(train, "run", fails)
    with directory.writer():
        assert train._recorded(directory, config) == 1
    assert directory.record()["reason"] == f"RuntimeError: {why}"


@pytest.mark.stack
def test_what_ray_ended_for_want_of_memory_is_named_with_what_it_had(monkeypatch):
    import ray

    @ray.remote(num_cpus=0)
    class Eater:
        def eat(self) -> None:
            time.sleep(60)

    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")  # more is in use anywhere
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "200")
    with own_ray(), pytest.raises(ray.exceptions.RayError) as failure:
        ray.get(Eater.remote().eat.remote(), timeout=60)
    assert re.fullmatch(
        r"Eater(\.eat)? \(pid \d+, [\d.]+GB\) was ended by Ray, because its machine had [\d.]+GB of [\d.]+GB in use; "
        r"the machine is out of memory: lower engine.kv_cache_mb, num_engines, num_workers or seq_len, or .*",
        reason_of(failure.value),
    )
