"""The package reasoning-gym for tests: installed into build/ where it is not there yet."""

import importlib.util
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "reasoning.lock"
FOLDER = ROOT / "build" / f"reasoning-{sys.version_info.major}.{sys.version_info.minor}"


def require() -> None:
    """Gives the test up where the package cannot be had; in continuous integration that is a failure."""
    if (problem := provide()) is not None:
        give_up = pytest.fail if os.environ.get("CI", "").lower() == "true" else pytest.skip
        give_up(problem)


@cache
def provide() -> str | None:
    """Makes the package importable, here and in the processes that are started; why not, where it cannot be."""
    if importlib.util.find_spec("reasoning_gym") is None:
        problem = None if (FOLDER / "reasoning_gym").is_dir() else _install()
        if problem is not None:
            return problem
        sys.path.append(str(FOLDER))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its packages write in a way that Python warns of when it compiles them
        importlib.import_module("reasoning_gym")
    return None


def _install() -> str | None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(FOLDER), "-r", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    return None if done.returncode == 0 else f"reasoning-gym cannot be installed: {done.stderr.strip()[-300:]}"
