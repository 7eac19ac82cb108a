"""Runs that try to break a page: texts that are markup, names that are code, millions of
characters, 240 metrics, 5,000 steps."""

import json
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


ATTACK = "<img src=x onerror=window.pwned=1>"
SCRIPT = "<script>window.pwned=1</script>{{7*7}}"


HOSTILE_TURNS = [
    {"role": "assistant", "text": ATTACK, "num_tokens": 30, "is_error": False},
    {"role": ATTACK, "text": SCRIPT, "num_tokens": 10, "tool": SCRIPT, "is_error": True, "start_s": 1.0, "end_s": 1.5},
]


def hostile_run(root: Path) -> Path:
    """Every text of it is written by an enemy: names, labels, keys, reasons, notes, values, lanes, logs."""
    run_dir = root / "hostile-20260301-120000-bad0"
    run_dir.mkdir(parents=True)
    writer = core(run_dir, environments=("sums", ATTACK))
    for step in (1, 2, 3):
        writer.log_samples("batcher/1", step, samples_table(hostile_rows(step)))
        values = dict.fromkeys(HOSTILE_KEYS, step / 3) | {"grad_norm": float("inf"), "entropy": float("nan")}
        spans = [
            {"step": step, "lane": lane, "kind": "forward", "start_s": step, "end_s": step + 0.5, "detail": SCRIPT}
            for lane in (ATTACK, "<i>lane</i>")
        ]
        writer.log_step("trainer/1", step, step, values, spans_table(spans), 8 * step)
        rows = [row | {"env": ATTACK, "outcome": "eval", "advantage": None} for row in hostile_rows(step)[:3]]
        writer.log_eval("eval/1", step, step, {}, samples_table(rows))
    writer.close("failed")
    write_run_json(run_dir, ATTACK, "failed", START, 3, 3, 1, ("sums", ATTACK))
    record = json.loads((run_dir / "run.json").read_text())
    texts = {"reason": HOSTILE_TEXTS[0] + SCRIPT, "notes": SCRIPT, "tags": [ATTACK, SCRIPT], "host": ATTACK}
    more = {"model": SCRIPT, "algorithm": ATTACK, "versions": {ATTACK: SCRIPT}, "job_id": SCRIPT}
    (run_dir / "run.json").write_text(json.dumps(record | texts | more))
    (run_dir / "config.yaml").write_text(json.dumps({"name": ATTACK, "steps": 3, SCRIPT: {ATTACK: SCRIPT}}))
    (run_dir / "logs" / "driver.log").write_text("\n".join((*HOSTILE_TEXTS, ATTACK, SCRIPT)), encoding="utf-8")
    say_about(root, run_dir.name)
    return run_dir


def say_about(root: Path, run_id: str) -> None:
    """What other people of the dashboard wrote about a run, and a layout of theirs."""
    kept = root / ".telescope"
    kept.mkdir(exist_ok=True)
    said = {run_id: {"label": f"hostile {ATTACK}", "notes": SCRIPT, "tags": [ATTACK, SCRIPT]}}
    (kept / "about.json").write_text(json.dumps(said))
    chart = {"id": ATTACK, "title": SCRIPT, "keys": [*HOSTILE_KEYS[:4], ATTACK], "runs": [run_id, ATTACK]}
    group = {"id": '"><b>', "title": ATTACK, "charts": [chart, {"id": "c", "keys": ["<b>bold</b>/x"]}]}
    layout = {"sections": [{"id": SCRIPT, "title": ATTACK, "groups": [group]}]}
    entry = {"version": 1, "layout": layout, "undo": [], "redo": []}
    (kept / "layouts.json").write_text(json.dumps({f"enemy {ATTACK}": entry}))


def odd_run(root: Path) -> Path:
    """Values that are not finite around single ones that are, and in the newest step."""
    nan, inf = float("nan"), float("inf")
    columns = {"lone": (nan, 0.5, nan, 0.6, 0.7, 0.8, 0.9), "grad_norm": (1, 2, 3, 4, 5, 6, nan), "up": (0, inf)}
    run_dir = root / "odd-20260301-120000-0dd0"
    run_dir.mkdir(parents=True)
    writer = core(run_dir)
    for step in range(1, 8):
        values = {key: column[step - 1] for key, column in columns.items() if step <= len(column)}
        writer.log_step("trainer/1", step, step, values, spans_table([]), 0)
    writer.close("finished")
    write_run_json(run_dir, "odd", "finished", START, 7, 7, 1, ("sums",))
    return run_dir


def hostile_rows(step: int) -> list[dict]:
    return [hostile_row(step, place, text) for place, text in enumerate((*HOSTILE_TEXTS, LONG, "", "plain"))]


def hostile_row(step: int, place: int, text: str) -> dict:
    tokens = list(range(40))
    return sample(
        step=step,
        env="sums" if place % 2 else ATTACK,
        problem_id=SCRIPT,
        engine=ATTACK,
        group_id=step * 10 + place // 4,
        sample_id=step * 100 + place,
        prompt=text[:5000],
        completion=text,
        reward=place / 8,
        advantage=place / 8 - 0.5,
        golden_answers={"<b>k</b>": text[:200], ATTACK: SCRIPT},
        tags={"<i>t</i>": "<u>v</u>", ATTACK: SCRIPT},
        sample_metrics={"correct": 1.0, "<b>m</b>": 2.0, ATTACK: 1.0},
        stop_reason="<s>stop</s>",
        token_ids=tokens,
        trained_mask=[i % 5 != 0 for i in tokens],
        rollout_logprobs=[-0.1 * i for i in tokens],
        versions=[step - 1] * 40,
        turns=HOSTILE_TURNS if text == "plain" else None,
        completion_tokens=40,
        total_tokens=45,
        generate_start_s=float(step),
        generate_end_s=step + 0.4,
        reward_start_s=step + 0.4,
        reward_end_s=step + 0.5,
    )


def many_keys_run(root: Path, keys: int = 240, steps: int = 60) -> Path:
    """A run with many metrics; one of them, `spike`, has an outlier at step 30."""
    run_dir = root / "wide-20260301-110000-0240"
    run_dir.mkdir(parents=True)
    writer = core(run_dir, environments=("sums",))
    for step in range(1, steps + 1):
        rows = [sample(step=step, group_id=step, sample_id=step * 10 + i, reward=float(i % 2)) for i in range(4)]
        writer.log_samples("batcher/1", step, samples_table(rows))
        values = {f"section {i // 12}/metric {i}": float((i + step) % 7) for i in range(keys)}
        values["spike"] = 500.0 if step == 30 else float(step % 7 + 1)
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
