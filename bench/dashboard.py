"""What the dashboard costs: bytes and server CPU of a refresh, browser CPU, longest task and heap.

    python -m bench.dashboard [--soak 20]

Writes runs of 5,000 steps x 100 keys through the product's own store into a temporary folder, serves them with
`python -m ui`, and drives Chromium through tests/browser/bench.js. Times are CPU time, so that a busy machine changes
them little; the table shows each number beside its target.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from metrics.schema import SAMPLES, conform, samples_table
from metrics.store import Store
from tests.browser.conftest import TOOLS, Server, chromium, install_packages
from tests.browser.runs import Growing, write_history
from tests.metrics.builders import START, sample

ROOT = Path(__file__).resolve().parent.parent
STEPS, KEYS, WIDE_KEYS, RUNS = 5_000, 100, 320, 10
REFRESHES = 150


def write_big_step(root: Path, count: int = 10_000) -> Path:
    run_dir = write_history(root, "big", 1, 10)
    store = Store(run_dir)
    rows = [
        sample(group_id=i // 8, sample_id=i, reward=float(i % 3) / 2, prompt="2+2?", completion="4")
        for i in range(count)
    ]
    store.add_samples(samples_table(rows), attempt=1, source="bench-samples", seq=1)
    store.close()
    return run_dir


def write_rollouts(root: Path, per_step: int = 128, batch: int = 50) -> Path:
    """A run of STEPS steps with all of its rollouts."""
    run_dir = write_history(root, "many", STEPS, 10)
    store, rng = Store(run_dir), np.random.default_rng(0)
    for first in range(1, STEPS + 1, batch):
        store.add_samples(rollouts(first, batch, per_step, rng), attempt=1, source="bench-samples", seq=first)
        counts = [(step, "discarded_count", 0.1 * per_step) for step in range(first, first + batch)]
        store.add_values(counts, attempt=1, source="bench-counts", seq=first, time_s=START.timestamp() + 3 * first)
    store.close()
    return run_dir


def rollouts(first: int, num_steps: int, per_step: int, rng: np.random.Generator) -> pa.Table:
    count = num_steps * per_step
    ids = np.arange(count) + first * per_step
    right, length = rng.random(count) < 0.5, rng.integers(4, 60, count)
    columns = {
        "step": first + np.arange(count) // per_step,
        "env": np.full(count, "sums"),
        "group_id": ids // 8,
        "sample_id": ids,
        "outcome": np.where(rng.random(count) < 0.9, "trained", "zero_advantage"),
        "reward": right.astype(np.float64),
        "advantage": right - 0.5,
        "prompt_tokens": np.full(count, 5),
        "completion_tokens": length,
        "total_tokens": length + 5,
        "num_turns": np.ones(count, np.int64),
        "truncated_turns": np.zeros(count, np.int64),
        "prompt": np.full(count, "What is 2 + 2?"),
        "completion": np.where(right, "It is 4.", "It is 5."),
    }
    return conform(pa.table(columns), SAMPLES)


def grow_for_ever(growing: Growing, done: threading.Event) -> None:
    while not done.wait(1.0):
        growing.grow()


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def refresh_cost(server: Server, growing: Growing, run_id: str) -> tuple[float, float]:
    """Mean bytes and server CPU milliseconds of a poll that brings one new step."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)

    def poll(step: int, rev: str, known: int) -> tuple[int, dict]:
        with urllib.request.urlopen(f"{server.url}/data/delta?c={run_id}:{step}:{rev}:{known}") as answer:
            body = answer.read()
        return len(body), json.loads(body)["runs"][0]

    _, found = poll(0, "", 0)
    sizes, spent = [], 0.0
    for _ in range(REFRESHES):
        growing.grow()
        begun = cpu_s(process)
        size, found = poll(found["last_step"], found["rev"], found["num_keys"])
        spent += cpu_s(process) - begun
        assert len(found["steps"]) == 1, found["steps"]
        sizes.append(size)
    return float(np.mean(sizes)), 1000 * spent / REFRESHES


def in_browser(server: Server, facts: dict) -> dict:
    environment = os.environ | {
        "NODE_PATH": str(TOOLS / "node_modules"),
        "CHROMIUM": chromium() or "chromium",
        "BASE": server.url,
        "FACTS": json.dumps(facts),
    }
    command = ["node", str(ROOT / "tests" / "browser" / "bench.js")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
    if done.returncode:
        raise RuntimeError(f"bench.js failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def show(rows: list[tuple[str, float, float | None, str]]) -> None:
    print(f"\n{'what':58} {'measured':>12} {'target':>10} {'ratio':>7}")
    for name, value, target, unit in rows:
        wanted = "" if target is None else f"{target:g} {unit}"
        ratio = "" if target is None else f"{value / target:.2f}"
        print(f"{name:58} {value:>9.4g} {unit:2} {wanted:>10} {ratio:>7}")


def table(size: float, spent: float, wide_size: float, wide_spent: float, found: dict) -> None:
    live, ten, big = found["live"], found["ten_runs"], found["step_of_10000"]
    many, gone = found["many"], found["discarded"]
    show(
        [
            ("refresh, 100 columns x 1 step: bytes", size / 1000, 4, "KB"),
            ("refresh, 100 columns x 1 step: server CPU", spent, 2, "ms"),
            (f"refresh, {WIDE_KEYS} columns x 1 step: bytes", wide_size / 1000, None, "KB"),
            (f"refresh, {WIDE_KEYS} columns x 1 step: server CPU", wide_spent, None, "ms"),
            ("16 charts of 5,000 steps painted: browser CPU", found["paint_16"]["cpu_s"], 1.5, "s"),
            (f"{found['charts_60']['cards']} charts, scrolled through: CPU", found["charts_60"]["cpu_s"], None, "s"),
            (f"{found['charts_60']['cards']} charts: heap", found["charts_60"]["heap_mb"], None, "MB"),
            (f"{found['charts_240']['cards']} charts, scrolled through: CPU", found["charts_240"]["cpu_s"], None, "s"),
            (f"{found['charts_240']['cards']} charts: heap", found["charts_240"]["heap_mb"], None, "MB"),
            ("16 charts x 3 runs live: browser CPU a refresh", live["cpu_ms"], None, "ms"),
            ("16 charts x 3 runs live: CPU of the longest task", live["longest_ms"], 50, "ms"),
            ("live soak: heap at the end over heap at the start", live["heap_mb"][1] / live["heap_mb"][0], 1.1, ""),
            (f"10 runs x 5,000 steps, {ten['columns']} columns: heap", ten["heap_mb"], 150, "MB"),
            ("a step of 10,000 rollouts: wall until shown", big["wall_s"], None, "s"),
            ("a step of 10,000 rollouts: browser CPU", big["cpu_s"], None, "s"),
            ("a step of 10,000 rollouts: CPU of the longest task", max(big["longest_ms"]), 50, "ms"),
            ("every page, Gradio's start: CPU of the longest task", max(big["start_ms"]), None, "ms"),
            ("a step of 5,000 x 128 rollouts: wall until shown", many["wall_s"], 2, "s"),
            ("a step of 5,000 x 128 rollouts: browser CPU", many["cpu_s"], None, "s"),
            ("a step of 5,000 x 128 rollouts: server CPU", many["server_s"], None, "s"),
            ("5,000 x 128 rollouts, what was discarded: wall until shown", gone["wall_s"], 2, "s"),
            ("5,000 x 128 rollouts, what was discarded: browser CPU", gone["cpu_s"], None, "s"),
            ("5,000 x 128 rollouts, what was discarded: server CPU", gone["server_s"], None, "s"),
        ]
    )
    ours = sorted(zip(big["longest_ms"], big["longest_what"], strict=True))
    said = ", ".join(f"{ms:.0f} ms {what}" for ms, what in ours)
    print(f"a step of 10,000 rollouts, longest task of each round: {said}")
    print(f"Gradio's start, the same in ms: {' '.join(f'{ms:.0f}' for ms in sorted(big['start_ms']))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--soak", type=float, default=20.0, help="seconds of live updates (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    chosen = parser.parse_args()
    if not (TOOLS / "node_modules").is_dir():
        install_packages()
    root = Path(tempfile.mkdtemp(prefix="telescope-bench-"))
    begun = time.monotonic()
    runs = [write_history(root, f"run{i}", STEPS, KEYS) for i in range(RUNS)]
    live, wide = (
        write_history(root, "live", 600, KEYS, "running"),
        write_history(root, "wide", 200, WIDE_KEYS, "running"),
    )
    big, many = write_big_step(root), write_rollouts(root)
    print(f"{RUNS} runs of {STEPS} steps x {KEYS} keys written in {time.monotonic() - begun:.0f} s", flush=True)
    server, done = Server(root).start(), threading.Event()
    growing = Growing(live, 600, KEYS)
    try:
        size, spent = refresh_cost(server, growing, live.name)
        wide_size, wide_spent = refresh_cost(server, Growing(wide, 200, WIDE_KEYS), wide.name)
        threading.Thread(target=grow_for_ever, args=(growing, done), daemon=True).start()
        facts: dict[str, Any] = {"runs": [run.name for run in runs], "live": live.name, "wide": wide.name}
        assert server.process is not None
        facts |= {"big": big.name, "many": many.name, "server_pid": server.process.pid}
        found = in_browser(server, facts | {"soak_s": chosen.soak})
    finally:
        done.set()
        server.stop()
        shutil.rmtree(root, ignore_errors=True)
    table(size, spent, wide_size, wide_spent, found)
    if chosen.json:
        chosen.json.write_text(json.dumps({"bytes": size, "server_ms": spent, **found}, indent=1))


if __name__ == "__main__":
    main()
