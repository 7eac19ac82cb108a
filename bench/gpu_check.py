"""The checks of bench/gpu_check.sh: the libraries, then small runs of configs/gpu.yaml, judged by what they stored."""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from app import config, local_ray
from app.jobs import Jobs, Run
from metrics import read
from metrics.checks import PROBE_LIMIT_LOW_PRECISION
from metrics.recompute import recompute

RUN_LIMIT_S = 190
STEPS = 8
MISMATCH_LIMIT = 0.05
"""Mean |Δ log p| of sampled tokens between bfloat16 in the engine and in the trainer; a fault gives several tenths."""
SMALL = [
    "model=embedded",
    f"steps={STEPS}",
    "warmup_steps=2",
    'environments=[{"name": "sums"}]',
    "evals=[]",
    "prompts_per_step=16",
    "group_size=8",
    "groups_per_ticket=4",
    "max_prompt_tokens=24",
    "max_tokens=10",
    "seq_len=256",
    "learning_rate=1.0e-4",
    "engine.max_model_len=64",
    "engine.max_num_seqs=128",
    "engine.enforce_eager=true",
    "gradient_checkpointing=true",
    f"checkpoint_every={STEPS}",
]
SPANS = ("forward", "backward", "optimizer", "weight_sync_trainer", "weight_sync_inference", "waiting_for_data")


@dataclass(frozen=True)
class Result:
    """One line of the report; `passed` is None for what could not be checked here."""

    name: str
    passed: bool | None
    figures: str

    def line(self) -> str:
        word = "SKIP" if self.passed is None else "PASS" if self.passed else "FAIL"
        return f"{word} {self.name}: {self.figures}"


def libraries(on_cpu: bool) -> Iterator[Result]:
    """What torch and vLLM find on this machine."""
    import torch
    import vllm
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from app import weights
    from app.fsdp import attention

    gpus = torch.cuda.device_count()
    yield Result("torch", on_cpu or gpus > 0, f"{torch.__version__}, vllm {vllm.__version__}, {gpus} GPUs")
    weights.register()
    missing = [name for name in weights.TRANSFER_BACKENDS if name not in WeightTransferEngineFactory._registry]
    yield Result("weight-transfer engines registered in vLLM", not missing, f"missing: {missing or 'none'}")
    if on_cpu:
        return
    yield Result("bf16", torch.cuda.is_bf16_supported(), torch.cuda.get_device_name())
    nccl = torch.distributed.is_nccl_available()
    yield Result("NCCL", nccl, ".".join(map(str, torch.cuda.nccl.version())) if nccl else "not in this torch")
    yield Result("attention of the trainer", True, attention(torch.device("cuda"), torch.bfloat16))


def placements(gpus: int, on_cpu: bool) -> Iterator[tuple[str, list[str] | str]]:
    """(name, overrides) of each run, or why it cannot be done here."""
    if on_cpu:
        common = ["use_gpu=false", "num_engines=1", "engine.cpus=0.4", "cpus_per_worker=0.2"]
        yield "run through the object store", [*common, "num_workers=1", "weight_transfer=object_store"]
        yield "run over the process group, two ranks", [*common, "num_workers=2", "weight_transfer=group"]
        return
    half = ["gpus_per_worker=0.5", "engine.gpus=0.5", "engine.gpu_memory_utilization=0.4"]
    yield (
        "run through the object store",
        ["num_workers=1", "num_engines=1", "weight_transfer=object_store", *(half if gpus == 1 else [])],
    )
    if gpus < 2:
        yield "run over NCCL", "one GPU: NCCL has no two ranks on one device"
    else:
        yield "run over NCCL", ["num_workers=1", f"num_engines={min(2, gpus - 1)}", "weight_transfer=group"]
    if gpus < 3:
        yield "run over NCCL, FSDP of two ranks", f"{gpus} GPUs, it takes three"
    else:
        yield "run over NCCL, FSDP of two ranks", ["num_workers=2", "num_engines=1", "weight_transfer=group"]


def judged(name: str, run_dir: Path, state: str, reason: str | None, wall_s: float) -> Iterator[Result]:
    """What a run's directory says of it."""
    yield Result(name, state == "finished", f"{state} after {wall_s:.0f} s" + (f": {reason}" if reason else ""))
    if state != "finished":
        return
    columns = read.series(run_dir)["columns"]
    yield from judged_values(name, columns)
    differences = recompute(run_dir).differences
    yield Result(f"{name}, numbers follow from its rows", not differences, f"{len(differences)} differ")
    red = sorted({one["check"] for one in read.checks(run_dir) if not one["ok"]} - {"groups_tied", "metrics_keep_up"})
    yield Result(f"{name}, self-checks", not red, f"red: {', '.join(red) or 'none'}")


def judged_values(name: str, columns: Mapping[str, list[float | None]]) -> Iterator[Result]:
    """Probes within their tolerance, finite numbers, timings of every kind, weights that moved."""
    probes = [value for value in columns.get("probe/logprob_abs_max", []) if value is not None]
    ok = len(probes) == STEPS and all(value <= PROBE_LIMIT_LOW_PRECISION for value in probes)  # NaN is no pass
    yield Result(f"{name}, probes", ok, f"{told(probes)}, limit {PROBE_LIMIT_LOW_PRECISION}")
    norms = [value for value in columns.get("grad_norm", []) if value is not None]
    moved = len(norms) == STEPS and all(math.isfinite(value) and value > 0 for value in norms)
    yield Result(f"{name}, updates", moved, f"gradient norms {told(norms)}")
    mismatch = [value for value in columns.get("mismatch/logprob_abs_mean", []) if value is not None]
    agree = bool(mismatch) and all(value < MISMATCH_LIMIT for value in mismatch)
    yield Result(f"{name}, trainer and engine agree", agree, f"mean |Δ log p| {told(mismatch)}, limit {MISMATCH_LIMIT}")
    seconds = {kind: columns.get(f"timing_{kind}_total") or columns.get(f"timing_{kind}") for kind in SPANS}
    missing = [kind for kind, values in seconds.items() if not values]
    spent = ", ".join(f"{kind} {middle(values):.3f}" for kind, values in seconds.items() if values)
    yield Result(f"{name}, timings", not missing, f"seconds a step: {spent}" if not missing else f"missing: {missing}")


def middle(values: list[float | None]) -> float:
    return median([value for value in values if value is not None] or [math.nan])


def told(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g} in {len(values)} steps" if values else "of no step"


@contextmanager
def cluster() -> Iterator[Jobs]:
    with local_ray.local_ray(num_cpus=2) as ray, tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        yield Jobs(ray.dashboard_url, Path(folder))


def runs(gpus: int, on_cpu: bool) -> Iterator[Result]:
    with cluster() as jobs:
        for name, overrides in placements(gpus, on_cpu):
            if isinstance(overrides, str):
                yield Result(name, None, overrides)
                continue
            began = time.monotonic()
            run: Run = jobs.submit(config.load("configs/gpu.yaml", [*SMALL, *overrides]))
            try:
                status: Any = run.wait(RUN_LIMIT_S)
            except TimeoutError:
                status = run.stop()
            yield from judged(name, run.directory.path, str(status), status.reason, time.monotonic() - began)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cpu", action="store_true", help="what of it can be done without a GPU")
    options = parser.parse_args(arguments)
    from torch.cuda import device_count

    results: list[Result] = []
    for part in (libraries(options.cpu), runs(device_count(), options.cpu)):
        for result in part:
            print(result.line(), flush=True)
            results.append(result)
        if any(result.passed is False for result in results):
            break
    failed, skipped = (sum(result.passed is kind for result in results) for kind in (False, None))
    print(f"{len(results) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
