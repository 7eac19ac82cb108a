"""What is installed from a wheel is all of the product: every module of the rooms, and every file of the pages."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("app", "environments", "metrics", "ui")


def test_the_wheel_holds_every_file_of_the_rooms(tmp_path):
    tracked = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {name for name in tracked.stdout.splitlines() if (ROOT / name).is_file()}
    source = tmp_path / "source"
    for name in {*files, "pyproject.toml", "README.md", "LICENSE"}:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    options = ["-qq", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=source, check=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    assert {f"{room}/py.typed" for room in ROOMS} <= files, "type checkers read the annotations of what is installed"
    assert files - set(zipfile.ZipFile(wheel).namelist()) == set()
