#!/usr/bin/env bash
# The whole check of the GPU path on one machine with NVIDIA GPUs, in under 8 minutes: one PASS, FAIL or SKIP line a check,
# with figures; exit status 0 only when nothing failed. Two GPUs or more are needed for the NCCL transfer, three for FSDP
# over several ranks. `bench/gpu_check.sh --cpu` does what of it can be done without a GPU.
# The environment is $VENV (default .venv-gpu), made from requirements/gpu.txt where it is not there yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "${1:-}" = --cpu ]; then
    venv=${VENV:-.venv}
else
    venv=${VENV:-.venv-gpu}
    if ! command -v nvidia-smi >/dev/null; then
        echo "FAIL driver: nvidia-smi is not there; run this on a machine with NVIDIA GPUs, or with --cpu"
        exit 1
    fi
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sed 's/^/GPU: /'
fi
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -qq -r requirements/gpu.txt
    "$venv/bin/pip" install -qq --no-deps --no-build-isolation -e .
fi
export HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
exec timeout 460 "$venv/bin/python" -m bench.gpu_check "$@"
