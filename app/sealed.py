"""Which checkpoints of a run are whole. Apart from `checkpoint`, whose torch takes seconds to import."""

from pathlib import Path

PLACE = "place.json"
"""The seal of a checkpoint's folder, written last."""


def whole(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted((file.parent for file in folder.glob(f"step_*/{PLACE}")), key=step_of)


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, if there is one."""
    return next(reversed(whole(folder)), None)


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder."""
    return int(path.name.removeprefix("step_"))
