"""Whole runs through the job API: real Ray Jobs, Serve with vLLM, Ray Data, Ray Train with FSDP, the metrics actor."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import ray
from ray import serve
from ray.util.state import list_actors

from app.config import EnvironmentConfig, from_dict
from app.jobs import Jobs, Run
from app.policy import prepare
from app.run_dir import application_of, create_for
from metrics import read
from metrics.recompute import recompute
from tests.e2e.processes import alive, family, is_running

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

RUN_TIMEOUT_S = 600


def small_run(**changes: Any) -> dict[str, Any]:
    """Four steps of the demo's policy; each test names only what it is about."""
    plain = {
        "name": "e2e",
        "model": str(prepare("embedded", [EnvironmentConfig(name="sums", label="sums")], 0)),
        "steps": 4,
        "environments": [{"name": "sums"}],
        "prompts_per_step": 4,
        "group_size": 4,
        "groups_per_ticket": 2,
        "max_prompt_tokens": 24,
        "max_tokens": 8,
        "seq_len": 128,
        "learning_rate": 1e-4,
        "discard_group_zero_advantage": False,
    }
    return plain | changes


PART_OF_THE_CONTRACT = (
    "reward_mean entropy kl_divergence_inference grad_norm learning_rate loss/policy tokens/trained "
    "tokens_completion_mean stop_reason_length_pct discarded_count timing_step_total timing_waiting_for_data "
    "timing_forward_total timing_backward_microbatch_mean timing_weight_sync_trainer_total timing_generation_pct "
    "timing_weight_sync_inference_total throughput/samples_per_s eval/sums/reward_mean ledger/trained "
    "timing_waiting_for_metrics_total metrics/unacknowledged engine/running engine/waiting engine/kv_cache "
    "engine/steps engine/prefix_cache_hits engine/preemptions"
)

SYNCHRONOUS = {"max_async_rollout": 0, "checkpoint_every": 2, "num_workers": 2, "cpus_per_worker": 0.2}


@pytest.fixture(scope="module")
def jobs(ray_cluster, serve_url, tmp_path_factory) -> Jobs:
    return Jobs(ray_cluster.dashboard_url, tmp_path_factory.mktemp("runs"))


def finished(run: Run) -> Run:
    status = run.wait(RUN_TIMEOUT_S)
    assert status == "finished", f"{status.reason}\n{run.logs(tail=60)}"
    return run


def columns(run: Run) -> dict[str, dict[int, float]]:
    """key → step → value."""
    series = run.metrics()
    return {
        key: {s: v for s, v in zip(series["steps"], values, strict=True) if v is not None}
        for key, values in series["columns"].items()
    }


def rows(run: Run, **conditions: Any) -> pl.DataFrame:
    return run.samples(limit=100_000, **conditions)[0]


def phases_of_start(run: Run) -> list[str]:
    """What the run says until its first step is done. One that lasts less than the pause may be missed."""
    seen: list[str] = []
    while not (record := run.record())["ended_at"] and (record["phase"] or "waiting for the first batch" not in seen):
        if record["phase"] is not None and record["phase"] not in seen:
            seen.append(record["phase"])
        time.sleep(0.05)
    return seen


@pytest.fixture(scope="module")
def phases() -> list[str]:
    """Of the start of `synchronous`, in order."""
    return []


@pytest.fixture(scope="module")
def synchronous(jobs, phases) -> Run:
    config = small_run(
        name="synchronous",
        backend="tests.e2e.backends:WithOwnMetrics",
        evals=[{"name": "sums", "eval_every": 2, "num_samples": 8, "pass_k": [1, 3]}],
        wandb={"project": "telescope-tests", "mode": "offline"},
        tensorboard=True,
        **SYNCHRONOUS,
    )
    run = jobs.submit(config)
    phases += phases_of_start(run)
    return finished(run)


@pytest.fixture(scope="module")
def interrupted(jobs) -> Run:
    """Fails in step 3 of its first attempt."""
    config = small_run(
        name="interrupted",
        backend="tests.e2e.backends:DiesInStepThree",
        evals=[{"name": "sums", "eval_every": 2, "num_samples": 4}],
        **SYNCHRONOUS,
    )
    return jobs.submit(config)


def test_a_synchronous_run_is_strictly_on_policy(synchronous):
    values = columns(synchronous)
    assert values["off_policy_steps_max"] == {1: 0, 2: 0, 3: 0, 4: 0}
    assert all(value == pytest.approx(1, abs=1e-4) for value in values["importance/mean"].values())
    trained = rows(synchronous, outcome="trained")
    assert all(set(v) == {s - 1} for s, v in trained.select("step", "versions").iter_rows())


def test_a_run_says_what_its_start_is_doing(synchronous, phases):
    long = ["starting the engines", "loading the trainer", "waiting for the first batch"]
    assert [phase for phase in phases if phase in long] == long
    assert synchronous.record()["phase"] is None


def test_the_log_of_a_run_tells_what_it_does_and_how_far_it_is(synchronous):
    said = synchronous.directory.driver_log.read_text()
    assert "INFO starting the engines\n" in said
    assert "INFO step 4/4 · reward " in said


def test_every_push_arrived(synchronous):
    values = columns(synchronous)
    assert set(values["probe/logprob_abs_max"]) == {1, 2, 3, 4}
    assert max(values["probe/logprob_abs_max"].values()) < 1e-3
    assert max(values["mismatch/logprob_abs_max"].values()) < 1e-3


def test_the_ledger_balances_and_every_number_follows_from_the_rows(synchronous):
    values = columns(synchronous)
    bins = ("trained", "zero_advantage", "max_async", "canceled", "error", "filtered", "in_flight")
    for step, started in values["ledger/started"].items():
        assert started == sum(values[f"ledger/{name}"][step] for name in bins)
    assert values["ledger/in_flight"][4] == 0
    assert rows(synchronous)["sample_id"].n_unique() == values["ledger/started"][4] == 64
    assert recompute(synchronous.directory.path).differences == []


def test_no_self_check_is_red(synchronous):
    """Tied groups are no fault of the system's: sixteen short samples can well be all wrong. Nor is a busy machine."""
    wrong = {check["check"] for check in read.checks(synchronous.directory.path) if not check["ok"]}
    assert wrong <= {"groups_tied", "metrics_keep_up"}


def test_the_contract_of_a_step_is_there(synchronous):
    values = columns(synchronous)
    assert [key for key in PART_OF_THE_CONTRACT.split() if key not in values] == []
    for step, total in values["timing_step_total"].items():
        parts = values["timing_waiting_for_data"][step] + values["timing_step_active"][step]
        assert parts == pytest.approx(total)


def test_a_metric_of_a_users_backend_is_charted_without_registration(synchronous):
    entry = next(e for e in read.catalog(synchronous.directory.path) if e["key"] == "mine/batch/largest advantage")
    assert (entry["section"], entry["group"], entry["name"]) == ("mine", "batch", "largest advantage")
    assert set(columns(synchronous)["mine/batch/largest advantage"]) == {1, 2, 3, 4}


def test_evals_are_before_during_and_after_training(synchronous):
    assert set(columns(synchronous)["eval/sums/reward_mean"]) == {0, 2, 4}


def test_weights_and_biases_and_tensorboard_have_the_run(synchronous):
    assert list(synchronous.directory.path.glob("wandb/offline-run-*/*.wandb")) != []
    (events,) = synchronous.directory.path.glob("tensorboard/events.*")
    assert b"mine/batch/largest_advantage" in events.read_bytes()


def test_the_loop_hardly_waits_for_its_metrics(synchronous):
    values = columns(synchronous)
    for step, waited in values["timing_waiting_for_metrics_total"].items():
        assert 0 <= waited < values["timing_step_total"][step]
    assert set(values["metrics/unacknowledged"].values()) <= {0.0, 1.0}


def test_a_red_self_check_stops_the_run_and_is_its_reason(jobs):
    constant = [{"name": "tests.e2e.constant:Constant", "label": "constant"}]
    run = jobs.submit(small_run(name="red", environments=constant, stop_on=["probe", "groups_tied"], steps=50))
    status = run.wait(RUN_TIMEOUT_S)
    assert status == "failed"
    assert status.reason == (
        "SelfCheckError: step 1: self-check groups_tied: 4 of 4 groups have all rewards equal (value 0, at least 1); "
        "likely cause: no group can teach anything: the problems are all too easy or too hard, or the reward is "
        "constant"
    )
    assert set(columns(run)["reward_mean"]) == {1}
    assert nothing_is_left([run])


def test_checkpoints_are_whole(synchronous):
    places = sorted(synchronous.directory.checkpoints.glob("step_*/place.json"))
    assert [place.parent.name for place in places] == ["step_000002", "step_000004"]


def test_tokens_are_those_that_were_sampled(synchronous):
    for row in rows(synchronous, outcome="trained").iter_rows(named=True):
        length = row["completion_tokens"]
        assert len(row["token_ids"]) == len(row["rollout_logprobs"]) == len(row["versions"]) == length
        assert row["total_tokens"] == length + len(row["prompt_ids"])


def test_a_failed_run_says_why_first(interrupted):
    status = interrupted.wait(RUN_TIMEOUT_S)
    assert status == "failed"
    assert status.reason == "ArithmeticError: step 3 is my last"
    for said in (interrupted.logs(), interrupted.directory.driver_log.read_text()):  # the trainer's own traceback
        assert 'raise ArithmeticError("step 3 is my last")' in said


def test_a_resumed_run_gives_the_numbers_of_an_uninterrupted_one(jobs, interrupted, synchronous):
    """Two steps, a failure, two more: the same samples and numbers as four steps at once, from the same seed."""
    interrupted.wait(RUN_TIMEOUT_S)
    resumed = finished(jobs.resume(interrupted))
    assert columns(resumed)["reward_mean"].keys() == {1, 2, 3, 4}
    order = ["step", "sample_id"]
    for run_rows in ("token_ids", "reward", "advantage"):
        ours = rows(resumed).sort(order)[run_rows].to_list()
        assert ours == rows(synchronous).sort(order)[run_rows].to_list()
    evaluated = rows(resumed, outcome="eval").select("step", "attempt").unique().sort("step")
    assert evaluated.rows() == [(0, 1), (2, 1), (4, 2)], "each once"
    for key in ("loss/policy", "grad_norm", "entropy", "mine/batch/largest advantage"):
        assert columns(resumed)[key] == pytest.approx(columns(synchronous)[key], abs=1e-5), key


def test_two_runs_at_once_do_not_disturb_each_other(jobs):
    """Both overlap sampling with training; one has an environment that fails in every way for some of its samples."""
    moody = small_run(
        name="moody",
        environments=[{"name": "tests.e2e.moody:Moody", "label": "moody", "reward_timeout_s": 1.0}],
        max_async_rollout=1,
        discard_group_zero_advantage=True,
        steps=5,
    )
    calm = small_run(name="calm", max_async_rollout=2, steps=5)
    both = [jobs.submit(moody), jobs.submit(calm)]
    for run in both:
        finished(run)
    check_moody(both[0])
    assert set(rows(both[1])["outcome"]) == {"trained"}
    assert columns(both[1])["off_policy_steps_max"][5] <= 2
    listed = {run.id: run.record()["state"] for run in jobs.list()}
    assert [listed[run.id] for run in both] == ["finished", "finished"]
    assert nothing_is_left(both)


def check_moody(run: Run) -> None:
    values = columns(run)
    assert max(values["off_policy_steps_max"].values()) <= 1
    everything = rows(run)
    reasons = " ".join(everything.filter(pl.col("outcome") == "error")["outcome_reason"])
    for mood in ("ZeroDivisionError: a mood", "longer than 1 s", "unscored", "nan", "str"):
        assert mood in reasons, f"{mood!r} is not among the reasons: {reasons[:2000]}"
    failed = everything.filter((pl.col("outcome") == "error") & ~pl.col("outcome_reason").str.starts_with("only "))
    assert failed["reward"].null_count() == len(failed), "an error is never a reward, and never a zero"
    last = max(values["ledger/started"])
    assert values["ledger/error"][last] == len(everything.filter(pl.col("outcome") == "error"))
    assert recompute(run.directory.path).differences == []


def nothing_is_left(runs: list[Run]) -> bool:
    """No Serve application and no named actor of these runs, within the time that Ray needs to end them."""
    from ray.util import list_named_actors

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        applications = [name for name in serve.status().applications if any(run.id in name for run in runs)]
        actors = [a for a in list_named_actors(all_namespaces=True) if any(run.id in a["namespace"] for run in runs)]
        if not applications and not actors:
            return True
        time.sleep(1)
    return False


def test_ray_job_stop_leaves_no_process_no_actor_and_no_reservation_behind(jobs, ray_cluster):
    """A job that came through `ray job submit`, with three seconds to end; nobody looks at the run meanwhile."""
    directory = create_for(from_dict(small_run(name="stopped", steps=500, max_async_rollout=1)), jobs.folder)
    free = ray.cluster_resources()["CPU"]
    until(lambda: ray.available_resources().get("CPU") == free, "the end of the runs before")
    before = {actor.actor_id for actor in alive()}
    words = [sys.executable, "-m", "app.train", "--run-dir", str(directory.path)]
    job_id = jobs.client().submit_job(entrypoint=shlex.join(words))
    run = jobs.get(directory.id)
    reaches(run, step=1)
    members = set(family(run))
    assert len(members) > 8
    ray_cli = [sys.executable, "-m", "ray.scripts.scripts", "job", "stop", "--address", ray_cluster.dashboard_url]
    subprocess.run([*ray_cli, job_id], check=True, capture_output=True, timeout=60)
    until(lambda: not any(map(is_running, members)), "the end of its processes")
    until(lambda: not [a for a in alive() if a.actor_id not in before and not a.is_detached], "the end of its actors")
    until(lambda: ray.available_resources().get("CPU") == free, "the end of its reservations")
    assert nothing_is_left([run])
    assert (run.status(), run.stop()) == ("stopped", "stopped")
    assert 0 < max(columns(run)["reward_mean"]) < 500
    assert recompute(run.directory.path).differences == []


def until(is_so: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.5)


def reaches(run: Run, step: int) -> None:
    """Waits until the run has stored that step."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while steps_of(run) < step:
        assert not run.status().final, f"{run.status().reason}\n{run.logs(tail=60)}"
        assert time.monotonic() < deadline, f"step {step} was not reached\n{run.logs(tail=60)}"
        time.sleep(0.5)


def core_pid(run_id: str) -> int:
    """The process in which the run's engine computes."""
    replicas = list_actors(filters=[("state", "=", "ALIVE")], limit=1000, detail=True)
    (replica,) = [actor for actor in replicas if application_of(run_id) in (actor.name or "")]
    children = psutil.Process(replica.pid).children()
    return next(child.pid for child in children if "EngineCore" in child.name())


def steps_of(run: Run) -> int:
    return run.metrics()["last_step"] or 0


def test_an_engine_that_dies_is_replaced_and_one_that_freezes_ends_the_run_by_name(jobs):
    run = jobs.submit(small_run(name="engines", steps=5000, max_async_rollout=1, stall_timeout_s=100.0))
    reaches(run, step=2)
    core = core_pid(run.id)
    os.kill(core, signal.SIGKILL)
    reaches(run, step=steps_of(run) + 8)  # more than what had been sampled ahead
    replacement = core_pid(run.id)
    assert replacement != core
    os.kill(replacement, signal.SIGSTOP)
    status = run.wait(RUN_TIMEOUT_S)
    assert status == "failed"
    assert "no step was finished for 100 s (stall_timeout_s)" in status.reason
    assert f"EngineCore (pid {replacement} on " in status.reason
    stacks = Path(run.directory.path, "logs", "stacks-1.txt").read_text()
    assert f"pid {replacement} on" in stacks.splitlines()[0]
    assert "Admission" in stacks
    assert "RayTrainWorker" in stacks
    assert nothing_is_left([run])
    assert not psutil.pid_exists(replacement)
    assert recompute(run.directory.path).differences == []
