"""Packages of our extras for the tests that need the real thing: installed into build/ where they are not there yet."""

import importlib
import importlib.util
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LOCKS = {"reasoning_gym": "reasoning.lock", "datasets": "hub.lock", "moto": "s3.lock"}


def require(package: str) -> None:
    """Gives the test up where the package cannot be had; in continuous integration that is a failure."""
    if (problem := provide(package)) is not None:
        give_up = pytest.fail if os.environ.get("CI", "").lower() == "true" else pytest.skip
        give_up(problem)


@cache
def provide(package: str) -> str | None:
    """Makes the package importable, here and in the processes that are started; why not, where it cannot be."""
    if importlib.util.find_spec(package) is None:
        lock = ROOT / "requirements" / LOCKS[package]
        folder = BUILD / f"{lock.stem}-{sys.version_info.major}.{sys.version_info.minor}"
        problem = None if (folder / package).is_dir() else _install(package, lock, folder)
        if problem is not None:
            return problem
        sys.path.append(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its packages write in a way that Python warns of when it compiles them
        importlib.import_module(package)
    return None


def _install(package: str, lock: Path, folder: Path) -> str | None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), "-r", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    return None if done.returncode == 0 else f"{package} cannot be installed: {done.stderr.strip()[-300:]}"
