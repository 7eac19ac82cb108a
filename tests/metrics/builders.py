"""Run directories with realistic contents, written through the product's own store."""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from metrics.core import MetricsCore
from metrics.schema import samples_table, spans_table

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
RANGES = {"correct": {"min": 0.0, "max": 1.0}, "tries": {"min": 0.0, "max": 5.0, "invert": True}}


def sample(**given: Any) -> dict[str, Any]:
    """One sample row; each test names only what it is about."""
    plain = {
        "step": 1,
        "env": "sums",
        "group_id": 0,
        "sample_id": 0,
        "outcome": "trained",
        "reward": 0.0,
        "advantage": 0.0,
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "num_turns": 1,
        "truncated_turns": 0,
        "off_policy_steps": 0,
    }
    return plain | given


def group(rewards: Sequence[float | None], *, group_id: int = 0, **given: Any) -> list[dict[str, Any]]:
    """A group of samples with these rewards and running sample ids."""
    first = group_id * 100
    return [sample(group_id=group_id, sample_id=first + i, reward=reward, **given) for i, reward in enumerate(rewards)]


def core(
    run_dir: Path,
    *,
    attempt: int = 1,
    resume_step: int = 0,
    environments: Sequence[str] = ("sums",),
    num_slots: int = 4,
    clock: Any = None,
    config: dict[str, Any] | None = None,
    **more: Any,
) -> MetricsCore:
    entries = [{"name": name, "reward_min": 0.0, "reward_max": 1.0, "metrics_ranges": RANGES} for name in environments]
    extra = {"clock": clock} if clock else {}
    return MetricsCore(
        run_dir,
        attempt=attempt,
        resume_step=resume_step,
        config=config or {"algorithm": "grpo"},
        environments=entries,
        num_slots=num_slots,
        **extra,
        **more,
    )


def write_run(
    root: Path,
    *,
    name: str = "demo",
    steps: int = 20,
    groups: int = 4,
    group_size: int = 4,
    environments: Sequence[str] = ("sums",),
    state: str = "finished",
    seed: int = 0,
    resume_at: int | None = None,
    eval_every: int = 5,
    nan_at: int | None = 7,
) -> Path:
    """A run that learns: samples of every bin, spans, steps, evals, one NaN, and, with resume_at, a second attempt."""
    rng = random.Random(f"{name}/{seed}")
    moment = START + timedelta(hours=seed)
    run_dir = Path(root) / f"{name}-{moment:%Y%m%d-%H%M%S}-{rng.randrange(16**4):04x}"
    run_dir.mkdir(parents=True)
    ends = [(1, 0, min(steps, resume_at + 2)), (2, resume_at, steps)] if resume_at is not None else [(1, 0, steps)]
    last = steps if state == "finished" else ends[-1][2]
    for attempt, resume_step, end in ends:
        writer = Writer(run_dir, rng, moment, attempt, resume_step, groups, group_size, environments, steps)
        writer.write(end, eval_every, nan_at)
        writer.core.close(state if end == last else "failed")
    write_run_json(run_dir, name, state, moment, steps, last, len(ends), environments)
    return run_dir


def write_run_json(
    run_dir: Path,
    name: str,
    state: str,
    moment: datetime,
    steps: int,
    last: int,
    attempt: int,
    environments: Sequence[str],
) -> None:
    ended = (
        (moment + timedelta(seconds=10 + 3 * last)).isoformat() if state in ("finished", "failed", "stopped") else None
    )
    about = {
        "id": run_dir.name,
        "name": name,
        "state": state,
        "reason": "the engine ended: out of memory" if state == "failed" else None,
        "created_at": moment.isoformat(),
        "started_at": (moment + timedelta(seconds=4)).isoformat(),
        "ended_at": ended,
        "steps": steps,
        "attempt": attempt,
        "model": "embedded",
        "environments": list(environments),
        "algorithm": "grpo",
        "job_id": None,
        "pid": 1,
        "host": "builder",
        "versions": {"telescope": "0.1.0"},
        "notes": "",
        "tags": [],
        "archived": False,
    }
    (run_dir / "run.json").write_text(json.dumps(about))
    (run_dir / "config.yaml").write_text(f"name: {name}\nsteps: {steps}\nalgorithm: grpo\n")
    (run_dir / "logs").mkdir(exist_ok=True)
    (run_dir / "logs" / "driver.log").write_text(f"{name}: written by tests/metrics/builders.py\n")


class Writer:
    """Sends the messages of a run to a MetricsCore, as the stream and the trainer would."""

    def __init__(
        self,
        run_dir: Path,
        rng: random.Random,
        moment: datetime,
        attempt: int,
        resume_step: int,
        groups: int,
        group_size: int,
        environments: Sequence[str],
        steps: int,
    ) -> None:
        self.rng, self.attempt, self.step = rng, attempt, resume_step
        self.groups, self.group_size, self.environments, self.steps = groups, group_size, environments, steps
        self.now_s, self.group, self.started = 100.0, 0, 0
        self.base = moment.timestamp() + 4
        self.core = core(
            run_dir,
            attempt=attempt,
            resume_step=resume_step,
            environments=environments,
            num_slots=groups * group_size,
            clock=lambda: self.base + 3 * self.step,
            config={"algorithm": "grpo", "name": run_dir.name, "steps": steps, "learning_rate": 1e-4, "seed": 0},
        )

    def write(self, last_step: int, eval_every: int, nan_at: int | None) -> None:
        if self.attempt == 1 and eval_every:
            self.evaluate(0)
        while self.step < last_step:
            self.step += 1
            self.one_step(nan_at)
            if eval_every and self.step % eval_every == 0:
                self.evaluate(self.step)

    def skill(self) -> float:
        return min(0.95, 0.1 + 0.9 * self.step / max(1, self.steps))

    def one_step(self, nan_at: int | None) -> None:
        start = self.now_s
        rows = [row for _ in range(self.groups) for row in self.finished_group(start)]
        self.started += len(rows)
        self.core.log_samples(f"batcher/{self.attempt}", self.step, samples_table(rows))
        trained = sum(row["completion_tokens"] for row in rows if row["outcome"] == "trained")
        drift = 0.001 * self.rng.random()
        values = {
            "loss/policy": self.rng.gauss(0, 0.01),
            "grad_norm": float("nan") if self.step == nan_at else 0.3 + self.rng.random(),
            "learning_rate": 1e-4,
            "entropy": 1.5 * (1 - 0.8 * self.skill()),
            "kl_divergence_inference": drift / 2,
            "clip/low_fraction": 0.0,
            "clip/high_fraction": 0.01 * self.rng.random(),
            "importance/mean": 1.0 + drift,
            "importance/max": 1.2,
            "importance/ess_fraction": 0.99,
            "importance/capped_fraction": 0.0,
            "mismatch/logprob_abs_mean": drift,
            "mismatch/logprob_abs_max": 10 * drift,
            "probe/logprob_abs_max": 1e-5,
            "tokens/trained": trained,
            "tokens/padding": 3,
            "metrics/unacknowledged": float(self.step == 2),
        }
        self.core.log_step(
            f"trainer/{self.attempt}", self.step, self.step, values, spans_table(self.spans(start)), self.started
        )

    def finished_group(self, start: float) -> list[dict[str, Any]]:
        self.group += 1
        env = self.environments[self.group % len(self.environments)]
        kind = self.rng.choices(["trained", "zero_advantage", "max_async", "error", "canceled"], [84, 8, 4, 2, 2])[0]
        right = [self.rng.random() < self.skill() for _ in range(self.group_size)]
        if kind == "zero_advantage":
            right = [right[0]] * self.group_size
        mean = sum(right) / len(right)
        return [self.row(env, kind, place, ok, float(ok) - mean, start) for place, ok in enumerate(right)]

    def row(self, env: str, kind: str, place: int, ok: bool, advantage: float, start: float) -> dict[str, Any]:
        a, b, length = self.rng.randrange(50), self.rng.randrange(50), self.rng.randrange(3, 24)
        scored = kind not in ("error", "canceled")
        begin = start + 0.5 * self.rng.random()
        reason = {
            "zero_advantage": "all rewards of its group are equal",
            "max_async": "2 steps off-policy",
            "error": "compute_reward raised ZeroDivisionError: division by zero",
            "canceled": "stopped while generating: too old to be trained",
        }.get(kind)
        text = f"{a} + {b} = {a + b if ok else a + b + 1}" + (" <b>ünïcödé 🎯</b>" if place == 0 else "")
        return sample(
            step=self.step,
            env=env,
            group_id=self.group,
            sample_id=self.group * 64 + place,
            problem_id=f"{env}/{self.group % 200}",
            outcome=kind,
            outcome_reason=reason,
            reward=float(ok) if scored else None,
            advantage=advantage if kind == "trained" else None,
            completion_tokens=length,
            prompt_tokens=6,
            total_tokens=length + 6,
            truncated_turns=int(length == 23),
            stop_reason="length" if length == 23 else "stop",
            off_policy_steps=2 if kind == "max_async" else 0,
            sample_metrics={"correct": float(ok), "tries": float(self.rng.randrange(1, 4))}
            | ({"carry": 1.0} if (a % 10) + (b % 10) > 9 else {}),
            golden_answers={"answer": str(a + b)},
            tags={"difficulty": "easy" if a + b < 50 else "hard"},
            prompt=f"What is {a} + {b}?",
            completion=text,
            prompt_ids=list(range(6)),
            token_ids=[self.rng.randrange(90) for _ in range(length)],
            trained_mask=[True] * length,
            rollout_logprobs=[-self.rng.random() for _ in range(length)],
            versions=[self.step - 1] * length,
            generate_start_s=begin,
            generate_end_s=begin + 0.04 * length,
            reward_start_s=begin + 0.04 * length,
            reward_end_s=begin + 0.04 * length + 0.02,
            engine="engine 0",
        )

    def spans(self, start: float) -> list[dict[str, Any]]:
        now, rows = start, []
        plan = [
            ("waiting_for_data", 1.4, None),
            ("data_to_device", 0.02, 0),
            ("forward", 0.3, 0),
            ("loss_computation", 0.05, 0),
            ("backward", 0.5, 0),
            ("forward", 0.3, 1),
            ("loss_computation", 0.05, 1),
            ("backward", 0.5, 1),
            ("optimizer", 0.08, None),
            ("waiting_for_metrics", 0.004, None),
        ]
        for kind, length, microbatch in plan:
            took = length * (0.9 + 0.2 * self.rng.random())
            rows.append(
                {
                    "step": self.step,
                    "lane": "trainer 0",
                    "kind": kind,
                    "start_s": now,
                    "end_s": now + took,
                    "microbatch": microbatch,
                }
            )
            now += took
        rows.append(
            {"step": self.step, "lane": "weights", "kind": "weight_sync_trainer", "start_s": now, "end_s": now + 0.05}
        )
        rows.append(
            {
                "step": self.step,
                "lane": "engine 0",
                "kind": "weight_sync_inference",
                "start_s": now + 0.05,
                "end_s": now + 0.09,
            }
        )
        self.now_s = now + 0.1
        rows.append({"step": self.step, "lane": "trainer 0", "kind": "step", "start_s": start, "end_s": self.now_s})
        return rows

    def evaluate(self, step: int) -> None:
        rows = []
        for problem in range(6):
            for place in range(2):
                ok = self.rng.random() < self.skill()
                rows.append(
                    sample(
                        step=step,
                        env=self.environments[problem % len(self.environments)],
                        group_id=problem,
                        sample_id=problem * 2 + place,
                        problem_id=f"held-out/{problem}",
                        outcome="eval",
                        reward=None if problem == 5 and step == 0 else float(ok),
                        advantage=None,
                        sample_metrics={"correct": float(ok)},
                        prompt=f"What is {problem} + 1?",
                        completion=str(problem + 1 + (not ok)),
                    )
                )
        self.core.log_eval(f"eval/{self.attempt}", step, step, {}, samples_table(rows))
