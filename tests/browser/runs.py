"""Runs that try to break a page: texts that are markup, names that are code, millions of
characters, 240 metrics, 5,000 steps."""

import math
import time
from pathlib import Path

import numpy as np

from metrics.core import MetricsCore
from metrics.schema import samples_table, spans_table
from metrics.store import Store
from tests.metrics.builders import START, core, sample, write_run_json

BATCH = 250
ENVIRONMENTS = [{"name": "sums", "reward_min": 0.0, "reward_max": 1.0, "metrics_ranges": {}}]

HOSTILE_TEXTS = (
    "<style>body{display:none}</style></div></div>",
    '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>',
    '<a href="javascript:window.pwned=1">x</a> ![x](http://outside.invalid/x.png) {{7*7}} ${7*7}',
    "</textarea></pre></script><iframe src=//outside.invalid></iframe>",
    "\u202eevil\u0000\u0007 🎯 текст 損失",
)
HOSTILE_KEYS = (
    "[train] loss", "loss (nats)", "a%b", "a:b", "a?b#c", "потери", "損失/訓練", "🎯/acc", 'a"b', "a'b", "a{b}", "a`b",
    "my.loss", "SELECT", "<b>bold</b>/x", "energy (eV⁄A)", "__proto__/constructor", "x,y", "x\\y",
)  # fmt: skip
LONG = "x" * 1_000_000 + " " + "long words and lines\n" * 50_000


def hostile_run(root: Path) -> Path:
    run_dir = root / "hostile-20260301-120000-bad0"
    run_dir.mkdir(parents=True)
    writer = core(run_dir, environments=("sums",))
    for step in (1, 2, 3):
        writer.log_samples("batcher/1", step, samples_table(hostile_rows(step)))
        values = dict.fromkeys(HOSTILE_KEYS, step / 3) | {"grad_norm": float("inf"), "entropy": float("nan")}
        spans = [{"step": step, "lane": "<i>lane</i>", "kind": "forward", "start_s": step, "end_s": step + 0.5}]
        writer.log_step("trainer/1", step, step, values, spans_table(spans), 8 * step)
    writer.close("failed")
    write_run_json(run_dir, "hostile", "failed", START, 3, 3, 1, ("sums",))
    record = (run_dir / "run.json").read_text()
    (run_dir / "run.json").write_text(record.replace("the engine ended: out of memory", HOSTILE_TEXTS[0]))
    (run_dir / "logs" / "driver.log").write_text("\n".join(HOSTILE_TEXTS), encoding="utf-8")
    return run_dir


def hostile_rows(step: int) -> list[dict]:
    return [hostile_row(step, place, text) for place, text in enumerate((*HOSTILE_TEXTS, LONG, "", "plain"))]


def hostile_row(step: int, place: int, text: str) -> dict:
    tokens = list(range(40))
    return sample(
        step=step,
        group_id=step * 10 + place // 4,
        sample_id=step * 100 + place,
        prompt=text[:5000],
        completion=text,
        reward=place / 8,
        advantage=place / 8 - 0.5,
        golden_answers={"<b>k</b>": text[:200]},
        tags={"<i>t</i>": "<u>v</u>"},
        sample_metrics={"correct": 1.0, "<b>m</b>": 2.0},
        stop_reason="<s>stop</s>",
        token_ids=tokens,
        trained_mask=[i % 5 != 0 for i in tokens],
        rollout_logprobs=[-0.1 * i for i in tokens],
        versions=[step - 1] * 40,
        completion_tokens=40,
        total_tokens=45,
        generate_start_s=float(step),
        generate_end_s=step + 0.4,
        reward_start_s=step + 0.4,
        reward_end_s=step + 0.5,
    )


def many_keys_run(root: Path, keys: int = 240, steps: int = 40) -> Path:
    run_dir = root / "wide-20260301-110000-0240"
    run_dir.mkdir(parents=True)
    writer = core(run_dir, environments=("sums",))
    for step in range(1, steps + 1):
        rows = [sample(step=step, group_id=step, sample_id=step * 10 + i, reward=float(i % 2)) for i in range(4)]
        writer.log_samples("batcher/1", step, samples_table(rows))
        values = {f"section {i // 12}/metric {i}": float((i + step) % 7) for i in range(keys)}
        writer.log_step("trainer/1", step, step, values, spans_table([]), 4 * step)
    writer.close("finished")
    write_run_json(run_dir, "wide", "finished", START, steps, steps, 1, ("sums",))
    return run_dir


def ranged_run(root: Path, steps: int = 14) -> Path:
    """Two environments whose rewards have different declared ranges."""
    run_dir = root / "ranged-20260301-130000-0010"
    run_dir.mkdir(parents=True)
    entries = [
        {"name": "coins", "reward_min": 0.0, "reward_max": 10.0, "metrics_ranges": {}},
        {"name": "sums", "reward_min": 0.0, "reward_max": 1.0, "metrics_ranges": {}},
    ]
    writer = MetricsCore(run_dir, attempt=1, resume_step=0, config={}, environments=entries, num_slots=4)
    for step in range(1, steps + 1):
        rewards = {"coins": 4.0 + 0.25 * step, "sums": 0.05 * step}
        rows = [
            sample(step=step, env=env, group_id=step * 2 + i, sample_id=step * 8 + i * 4 + j, reward=reward)
            for i, (env, reward) in enumerate(rewards.items())
            for j in range(4)
        ]
        writer.log_samples("batcher/1", step, samples_table(rows))
        writer.log_step("trainer/1", step, step, {"entropy": 1 / step}, spans_table([]), 8 * step)
    writer.close("finished")
    write_run_json(run_dir, "ranged", "finished", START, steps, steps, 1, ("coins", "sums"))
    return run_dir


def history_keys(count: int) -> list[str]:
    """Reward as a distribution, the built-in headline keys, then metrics of a trainer of one's own."""
    known = ["reward_mean", "reward_std", "reward_min", "reward_max", "entropy", "grad_norm", "learning_rate"]
    return known + [f"section {i // 10}/metric {i}" for i in range(count - len(known))]


def write_history(root: Path, name: str, steps: int, count: int, state: str = "finished") -> Path:
    """A long run of step metrics alone, through the product's own store."""
    run_dir = root / f"{name}-20260301-090000-0001"
    run_dir.mkdir(parents=True)
    store = Store(run_dir)
    store.begin(1, 0, {"config": {}, "environments": ENVIRONMENTS, "num_slots": 1})
    names, rng = history_keys(count), np.random.default_rng(len(name))
    for first in range(1, steps + 1, BATCH):
        last = min(steps, first + BATCH - 1)
        values = rng.standard_normal((last - first + 1, len(names))).cumsum(axis=0) * 0.02 + 1
        rows = [(first + i, key, float(values[i, k])) for i in range(len(values)) for k, key in enumerate(names)]
        store.add_values(rows, attempt=1, source="bench", seq=first, time_s=START.timestamp() + 3 * first)
    store.close()
    write_run_json(run_dir, name, state, START, steps, steps, 1, ("sums",))
    return run_dir


def add_spike(run_dir: Path, step: int, value: float) -> None:
    store = Store(run_dir)
    store.add_values([(step, "entropy", value)], attempt=1, source="spike", seq=1, time_s=START.timestamp())
    store.close()


class Growing:
    """Appends one step of a run at a time."""

    def __init__(self, run_dir: Path, step: int, count: int) -> None:
        self.store, self.step, self.names = Store(run_dir), step, history_keys(count)

    def grow(self) -> None:
        self.step += 1
        rows = [(self.step, key, 1 + 0.01 * math.sin(self.step + k)) for k, key in enumerate(self.names)]
        self.store.add_values(rows, attempt=1, source="grow", seq=self.step, time_s=time.time())
