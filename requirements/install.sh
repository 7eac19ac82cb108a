#!/usr/bin/env bash
# Makes the virtual environment (.venv, or $VENV) from the lock. Does nothing when it was made from this lock already.
# $PYTHON chooses the interpreter; otherwise the first Python 3.11 or 3.12 on the path is taken.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}
lock=requirements/cpu.lock
stamp=$venv/installed-from
wanted=$(cat "$lock" pyproject.toml requirements/install.sh | sha256sum | cut -d" " -f1)

say() { printf '%s\n' "$*" >&2; }

usable() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        if usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "setup: no Python 3.11 or 3.12 with the venv module found (looked for: ${PYTHON:-python3.11, python3.12, python3})."
    say "setup: install one (on Debian and Ubuntu also the python3-venv package), or name it: PYTHON=/path/to/python3.11 make setup"
    exit 1
}

# torch comes first and alone: whether its CPU build can be found depends on how pip is set up on this machine.
install_torch() {
    local pinned plain
    pinned=$(grep '^torch==' "$lock")
    plain=${pinned%+cpu}
    if "$venv/bin/pip" install -qq --no-deps "$pinned" 2>"$venv/torch.log"; then
        return
    fi
    say "setup: pip did not find $pinned; trying $plain, a larger build that also runs on CPUs"
    if "$venv/bin/pip" install -qq "$plain" 2>>"$venv/torch.log"; then
        return
    fi
    tail -n 3 "$venv/torch.log" >&2
    say "setup: neither $pinned nor $plain could be installed."
    say "setup: let pip see PyTorch's CPU wheel index (its address stands on PyTorch's install page: Linux, Pip, Python, CPU):"
    say "setup:   PIP_EXTRA_INDEX_URL=<that address> make setup"
    exit 1
}

if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
if ! usable "$venv/bin/python"; then
    python=$(find_python)
    say "setup: making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
say "setup: installing $(grep -c '==' "$lock") pinned packages into $venv (about 3 GB, some minutes the first time)"
install_torch
grep -v '^torch==' "$lock" >"$venv/without-torch.lock"
"$venv/bin/pip" install -qq --no-deps -r "$venv/without-torch.lock"
"$venv/bin/pip" install -qq --no-deps --no-build-isolation -e .
"$venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import entry_points

import torch

if not any(point.name == "telescope" for point in entry_points(group="vllm.general_plugins")):
    sys.exit("setup: the entry point vllm.general_plugins:telescope is missing after installation")
print(f"setup: Python {sys.version.split()[0]}, torch {torch.__version__}: ready", file=sys.stderr)
PYTHON
echo "$wanted" >"$stamp"
