"""Processes of our own: what they inherit, and that they end with a `with` block."""

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path


class Closed(AbstractContextManager):
    """What is closed at the end of its `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __exit__(self, *error: object) -> None:
        self.close()


def inherited(**changes: str) -> dict[str, str]:
    """Our own variables, without Ray's, with our import path, and with these changes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return own | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | changes
