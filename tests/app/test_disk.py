"""A full disk and a read-only run directory, on a small file system that is mounted for each test."""

import os
import shutil
import subprocess
import sys

import pytest

NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && exec "$3" -m tests.app.on_disk "$4" "$2"'


@pytest.fixture(scope="module", autouse=True)
def may_mount() -> None:
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs user namespaces, which this machine does not allow")


def on_disk(folder, function: str, size: str) -> subprocess.CompletedProcess[str]:
    """Runs a function of tests/app/on_disk.py on a file system of that size."""
    command = [*NAMESPACE, "sh", "-c", MOUNT, "sh", size, str(folder), sys.executable, function]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.parametrize("function", ["store", "checkpoint", "state"])
def test_a_full_disk_loses_nothing_that_was_acknowledged(tmp_path, function):
    on_disk(tmp_path, function, "1m")


def test_a_driver_that_fails_on_a_full_disk_says_so_on_the_console(tmp_path):
    said = on_disk(tmp_path, "end", "256k").stderr
    assert "the run failed: OSError: [Errno 28] No space left on device: 'x'; the disk is full: free some space" in said
    assert "its state cannot be written: [Errno 28] No space left on device" in said


def test_a_run_in_a_directory_that_is_read_only_is_read_and_not_resumed(tmp_path):
    on_disk(tmp_path, "read_only", "1m")
