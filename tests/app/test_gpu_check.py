"""bench/gpu_check: what it takes for a pass, and which runs are made of so many GPUs."""

import math
import subprocess
from pathlib import Path

import pytest
import torch
from ray import serve

from app import config
from app.engine import actor_resources
from app.fsdp import attention
from app.preflight import engine_gpus, reserved
from bench import gpu_check
from bench.gpu_check import SMALL, STEPS, Result, judged_values, placements

ROOT = Path(__file__).resolve().parents[2]
GOOD = {
    "probe/logprob_abs_max": [0.02] * STEPS,
    "grad_norm": [0.5] * STEPS,
    "mismatch/logprob_abs_mean": [0.004] * STEPS,
    **{f"timing_{kind}_total": [0.1] * STEPS for kind in gpu_check.SPANS if kind != "waiting_for_data"},
    "timing_waiting_for_data": [0.1] * STEPS,
}


def test_a_good_run_passes_every_check():
    assert all(result.passed for result in judged_values("run", GOOD))


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"probe/logprob_abs_max": [0.02] * (STEPS - 1) + [0.3]}, "run, probes"),
        ({"probe/logprob_abs_max": [0.02] * (STEPS - 1) + [math.nan]}, "run, probes"),
        ({"probe/logprob_abs_max": [None] * STEPS}, "run, probes"),
        ({"grad_norm": [0.5] * (STEPS - 1) + [0.0]}, "run, updates"),
        ({"mismatch/logprob_abs_mean": [0.2]}, "run, trainer and engine agree"),
        ({"timing_optimizer_total": None}, "run, timings"),
    ],
)
def test_what_is_wrong_with_a_run_fails_the_check_of_it(changes, failed):
    results = list(judged_values("run", GOOD | changes))
    assert [result.name for result in results if not result.passed] == [failed]


@pytest.mark.parametrize(("gpus", "done", "skipped"), [(1, 1, 2), (2, 2, 1), (3, 3, 0), (8, 3, 0)])
def test_what_can_be_done_with_so_many_gpus_is_done_and_the_rest_is_said(gpus, done, skipped):
    found = [overrides for _, overrides in placements(gpus, on_cpu=False)]
    runs = [config.load(ROOT / "configs" / "gpu.yaml", [*SMALL, *one]) for one in found if isinstance(one, list)]
    assert (len(runs), len(found) - len(runs)) == (done, skipped)
    for run in runs:
        assert (run.use_gpu, run.dtype) == (True, "bfloat16")
        assert run.num_workers * run.gpus_per_worker + run.num_engines * engine_gpus(run) <= gpus
    assert [run.weight_transfer for run in runs] == ["object_store", "group", "group"][:done]


@pytest.mark.parametrize("use_gpu", [True, False])
def test_engines_take_no_more_of_the_cluster_than_the_run_reserves(use_gpu):
    run = config.load(ROOT / "configs" / "gpu.yaml", ["engine.cpus=0.5"])
    engine = serve.deployment(name="engine", ray_actor_options=actor_resources(run, use_gpu))(type("Engine", (), {}))
    wanted, kept = engine.ray_actor_options, reserved(run, use_gpu, trains=False)
    assert run.num_engines * wanted["num_cpus"] <= kept.get("CPU", 0)
    assert run.num_engines * wanted.get("num_gpus", 0) == kept.get("GPU", 0)


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cuda", torch.bfloat16, "flash_attention_2"),
        ("cuda", torch.float32, "telescope"),  # flash attention knows half precision only
        ("cpu", torch.bfloat16, "telescope"),
    ],
)
def test_flash_attention_is_for_half_precision_on_gpus(device, dtype, expected, monkeypatch):
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    assert attention(torch.device(device), dtype) == expected


def test_a_failed_check_is_the_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "libraries", lambda on_cpu: iter([Result("torch", True, "")]))
    monkeypatch.setattr(
        gpu_check, "runs", lambda gpus, on_cpu: iter([Result("run", False, "it"), Result("b", None, "")])
    )
    assert gpu_check.main(["--cpu"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "PASS torch: ",
        "FAIL run: it",
        "SKIP b: ",
        "1 passed, 1 failed, 1 skipped",
    ]


def test_without_a_gpu_the_script_says_what_it_needs():
    done = subprocess.run(
        ["bash", "bench/gpu_check.sh"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/bin:/usr/bin"},
    )
    if "nvidia-smi is not there" not in done.stdout:
        pytest.skip("this machine has an NVIDIA driver")
    assert done.returncode == 1
