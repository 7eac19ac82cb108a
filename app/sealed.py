"""Which checkpoints of a run are whole. Apart from `checkpoint`, whose torch takes seconds to import."""

from pathlib import Path

PLACE = "place.json"
"""The seal of a checkpoint's folder, written last."""


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, if there is one."""
    return max((file.parent for file in folder.glob(f"step_*/{PLACE}")), default=None)
