"""20 kills with SIGKILL at random moments of runs like the demo: each run goes on by itself, or one command resumes it.

What a checkpoint promises (docs/operations.md): a resumed run begins at its newest sealed checkpoint, at most
`checkpoint_every` steps back. Those steps are done again, from the same prompts, in a new attempt that replaces them;
nothing before is lost, and in the history that stands each prompt is trained in one step.

`make chaos` runs it, apart from the other tests. `TELESCOPE_CHAOS_SEED=1` chooses other moments and another order.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import polars as pl
import psutil
import pytest
import ray

from app.jobs import Jobs, Run
from app.launch import Dashboard
from metrics.journal import read_lines
from metrics.recompute import recompute
from tests.e2e.processes import family, is_running, pids
from tests.e2e.test_runs import columns, finished, nothing_is_left, rows, small_run

pytestmark = [pytest.mark.chaos, pytest.mark.stack, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("TELESCOPE_CHAOS_SEED", "0"))
KILLS = {
    "engine core": 3,
    "Serve replica": 2,
    "Train worker": 3,
    "pipeline stage": 2,
    "metrics actor": 3,
    "driver": 3,
    "dashboard": 2,
    "whole job": 2,
}
GO_ON_BY_THEMSELVES = {"engine core", "Serve replica", "metrics actor", "dashboard"}
RUNS = 4
STEPS = 40
CHECKPOINT_EVERY = 3
RECOVERY_LIMIT_S = 300
GONE_LIMIT_S = 30
REWARD_TOLERANCE = 0.15
"""Of the held-out reward after the last step: one token that rounding decides otherwise changes all that follow."""


def plan(seed: int) -> list[list[str]]:
    """Who is killed in each of the runs, in this order."""
    order = [kind for kind, count in KILLS.items() for _ in range(count)]
    random.Random(seed).shuffle(order)
    return [order[number::RUNS] for number in range(RUNS)]


def like_the_demo(name: str, max_async_rollout: int) -> dict[str, Any]:
    return small_run(
        name=name,
        steps=STEPS,
        prompts_per_step=8,
        group_size=8,
        max_tokens=10,
        learning_rate=1.5e-4,
        max_async_rollout=max_async_rollout,
        checkpoint_every=CHECKPOINT_EVERY,
        evals=[{"name": "sums", "eval_every": STEPS, "num_samples": 200}],
    )


@dataclass
class Control:
    """The job API and the dashboard of one cluster."""

    jobs: Jobs
    dashboard: Dashboard

    def shows(self, run: Run) -> bool:
        try:
            found = httpx.get(f"{self.dashboard.url}/api/runs/{run.id}", timeout=5)
        except httpx.HTTPError:
            return False
        return found.status_code == 200 and found.json()["id"] == run.id


@pytest.fixture(scope="module")
def control(tmp_path_factory, request) -> Iterator[Control]:
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TELESCOPE_RUNS", str(root))  # the dashboard reads it where the cluster was started
        cluster = request.getfixturevalue("ray_cluster")
        port = int(request.getfixturevalue("serve_url").rpartition(":")[2])
        dashboard = Dashboard(cluster, port)
        yield Control(Jobs(cluster.dashboard_url, root), dashboard)


@pytest.fixture(scope="module")
def undisturbed(control) -> Callable[[], Run]:
    """The same run without kills, sampling and training in turn; made when it is first asked for."""
    return cache(lambda: finished(control.jobs.submit(like_the_demo("undisturbed", 0))))


@dataclass
class Chaos:
    """A run, who is killed in it, and what is found out meanwhile."""

    control: Control
    run: Run
    rng: random.Random
    began: float = field(default_factory=time.monotonic)
    killed_at: float = 0.0
    seen: set[psutil.Process] = field(default_factory=set)
    redone: list[tuple[int, int]] = field(default_factory=list)
    """(last step before the failure, step of the checkpoint) of each resume."""

    def kill(self, kind: str) -> None:
        """Kills one process of this kind (of the whole job all of them) at a random moment, and waits for recovery."""
        self.reaches(last_step(self.run) + self.rng.randint(1, 2))
        time.sleep(self.rng.uniform(0, 2))
        self.seen |= set(family(self.run))
        victims = [psutil.Process(pid) for pid in self._chosen(kind)]
        before, resumes = last_step(self.run), len(self.redone)
        self.killed_at = time.monotonic()
        for victim in victims:
            os.kill(victim.pid, signal.SIGKILL)
        self.reaches(before + 1)
        until(lambda: not any(map(is_running, victims)), GONE_LIMIT_S, "what was killed is gone")
        was_resumed = len(self.redone) > resumes
        assert not (was_resumed and kind in GO_ON_BY_THEMSELVES), f"{kind}: the run had to be resumed"
        how = f"resumed from step {self.redone[-1][1]}" if was_resumed else "went on by itself"
        killed = f"{kind} (pid {', '.join(str(victim.pid) for victim in victims)}) killed after step {before}"
        began, took = self.killed_at - self.began, time.monotonic() - self.killed_at
        print(f"{self.run.id} at {began:.0f} s: {killed}, {how}, next step after {took:.0f} s", flush=True)

    def _chosen(self, kind: str) -> list[int]:
        found: list[int] = []

        def there() -> bool:
            found[:] = pids(self.run, kind)
            return bool(found)

        until(there, RECOVERY_LIMIT_S, f"a process of the {kind}")
        return found if kind == "whole job" else [self.rng.choice(sorted(found))]

    def reaches(self, step: int) -> None:
        """Waits for the step, resuming the run with one command where it failed."""
        deadline = time.monotonic() + RECOVERY_LIMIT_S
        while last_step(self.run) < step:
            status = self.run.status()
            if status == "failed":
                assert status.reason, "a failure without a reason"
                print(f"  failed {time.monotonic() - self.killed_at:.0f} s later: {status.reason[-400:]}", flush=True)
                reached = last_step(self.run)
                self.run = self.control.jobs.resume(self.run)
                self.redone.append((reached, self._resume_step()))
            assert status != "finished", "the run was over before everything had been killed"
            assert time.monotonic() < deadline, f"step {step} was not reached, {status}\n{self.run.logs(tail=80)}"
            time.sleep(0.5)

    def _resume_step(self) -> int:
        """The step of the checkpoint that the newest attempt goes on from."""
        file, attempt = self.run.directory.path / "metrics" / "attempts.jsonl", self.run.record()["attempt"]
        found: list[int] = []

        def begun() -> bool:
            found[:] = [item["resume_step"] for item in read_lines(file).items if item["attempt"] == attempt]
            return bool(found) or self.run.status().final

        until(begun, RECOVERY_LIMIT_S, f"attempt {attempt}")
        assert found, f"attempt {attempt} failed before it began: {self.run.status().reason}\n{self.run.logs(tail=80)}"
        return found[0]


def last_step(run: Run) -> int:
    return run.metrics()["last_step"] or 0


def until(is_so: Any, limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.5)


@pytest.mark.parametrize("number", range(RUNS))
def test_a_run_survives_the_death_of_its_processes(control, undisturbed, number):
    ahead = number % 2  # sampling and training in turn, or one batch ahead as in the demo
    run = control.jobs.submit(like_the_demo(f"killed-{number}", ahead))
    chaos = Chaos(control, run, random.Random(f"{SEED} {number}"))
    for kind in plan(SEED)[number]:
        chaos.kill(kind)
    run = finished(chaos.run)
    until(lambda: control.shows(run), RECOVERY_LIMIT_S, "the dashboard shows the run")
    print(f"{run.id}: finished after {time.monotonic() - chaos.began:.0f} s", flush=True)
    check_books(run, first_step=chaos.redone[-1][1] + 1 if chaos.redone else 1)
    check_redone(run, chaos.redone)
    if ahead == 0:
        check_learnt(run, undisturbed())
    check_gone(run, chaos.seen)


def check_books(run: Run, first_step: int) -> None:
    """Every step once, the ledger balanced, every number derivable, every group there once and whole.

    first_step: of the newest attempt, whose samples the ledger counts.
    """
    values = columns(run)
    assert sorted(values["reward_mean"]) == list(range(1, STEPS + 1))
    bins = ("trained", "zero_advantage", "max_async", "canceled", "error", "filtered", "in_flight")
    for step, started in values["ledger/started"].items():
        assert started == sum(values[f"ledger/{name}"][step] for name in bins), step
    assert recompute(run.directory.path).differences == []
    everything = rows(run)
    assert everything["sample_id"].is_duplicated().sum() == 0
    groups = everything.group_by("group_id").agg(pl.col("step").n_unique(), pl.len())
    assert sorted(groups["group_id"]) == list(range(len(groups))), "a prompt was lost"
    assert set(groups["step"]) == {1}, "a group is in two steps"
    assert set(groups["len"]) == {8}, "a group is not whole"
    newest = everything.filter((pl.col("step") >= first_step) & (pl.col("outcome") == "trained"))
    assert values["ledger/trained"][STEPS] == len(newest)


def check_redone(run: Run, redone: list[tuple[int, int]]) -> None:
    """A resume goes back to a checkpoint, and never by more than `checkpoint_every` steps."""
    assert len(redone) == run.record()["attempt"] - 1
    for reached, resumed_from in redone:
        assert resumed_from % CHECKPOINT_EVERY == 0
        assert 0 <= reached - resumed_from <= CHECKPOINT_EVERY, (
            f"failed after step {reached}, resumed at {resumed_from}"
        )


def check_learnt(run: Run, undisturbed: Run) -> None:
    """As good a policy in the end, from the same prompts in each step.

    Of runs in turn only: one batch ahead, steps as small as these learn by chance, without kills too.
    """
    theirs = columns(undisturbed)["eval/sums/reward_mean"]
    mine = columns(run)["eval/sums/reward_mean"][STEPS]
    print(f"{run.id}: held-out reward {theirs[0]:.3f} → {mine:.3f}, without kills {theirs[STEPS]:.3f}", flush=True)
    assert theirs[STEPS] > theirs[0] + 2 * REWARD_TOLERANCE, "without kills it must learn, or nothing is compared"
    assert mine == pytest.approx(theirs[STEPS], abs=REWARD_TOLERANCE)
    assert prompts_of_steps(run) == prompts_of_steps(undisturbed)


def prompts_of_steps(run: Run) -> dict[int, list[int]]:
    return {step: sorted(set(groups)) for step, groups in rows(run).group_by("step").agg("group_id").rows()}


def check_gone(run: Run, seen: set[psutil.Process]) -> None:
    """No application, no actor and no process of the run is left."""
    assert nothing_is_left([run])
    assert ray.is_initialized()
    until(lambda: not any(map(is_running, seen)), GONE_LIMIT_S, f"the end of {[p for p in seen if is_running(p)]}")
