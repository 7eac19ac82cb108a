"""The GPUs of the machine that serves the dashboard, as nvidia-smi tells them."""

import csv
import shutil
import subprocess
from typing import Any

FIELDS = ("name", "utilization.gpu", "memory.used", "memory.total")
LIMIT_S = 5.0
MIB = 1 << 20


def gpus() -> dict[str, Any]:
    """`found`: each GPU's name, busy share in percent and memory in bytes, null where the driver does not say;
    `problem`: why there is nothing, null where the machine has no NVIDIA driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"found": [], "problem": None}
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"found": [], "problem": f"nvidia-smi: {error}"}
    if done.returncode:
        return {"found": [], "problem": f"nvidia-smi: {(done.stdout or done.stderr).strip()[:200]}"}
    rows = list(csv.reader(done.stdout.splitlines(), skipinitialspace=True))
    if any(len(row) != len(FIELDS) for row in rows):
        return {"found": [], "problem": f"nvidia-smi: {done.stdout.strip()[:200]}"}
    return {"found": [_gpu(row) for row in rows], "problem": None}


def _gpu(row: list[str]) -> dict[str, Any]:
    name, *amounts = row
    busy, used, total = (float(amount) if amount.replace(".", "", 1).isdecimal() else None for amount in amounts)
    return {
        "name": name,
        "busy_percent": busy,
        "memory_used": None if used is None else used * MIB,
        "memory_total": None if total is None else total * MIB,
    }
