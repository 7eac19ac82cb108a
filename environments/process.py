"""Processes of our own: what they inherit."""

import os
import sys
from pathlib import Path


def inherited(**changes: str) -> dict[str, str]:
    """Our own variables, without Ray's, with our import path, and with these changes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return own | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | changes
