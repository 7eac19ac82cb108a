"""Names that come in from a browser. One rule each; a name that passes is one plain path component."""

import re
from pathlib import Path

from fastapi import HTTPException

FARTHEST = 2**53 - 1
"""The largest step, id or offset that a browser can name exactly."""
ID_RULE = "1 to 100 letters, digits, '.', '_' or '-', the first a letter or a digit"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGITS = re.compile(r"[0-9]{1,15}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def is_plain(name: str) -> bool:
    return bool(_ID.fullmatch(name)) and not _DEVICE.fullmatch(name)


class NoRun(HTTPException):
    """There is no such run, or no longer."""


def run_dir(root: Path, run_id: str) -> Path:
    """The directory of a run that exists under `root` and nowhere else (links are refused)."""
    if not is_plain(run_id):
        raise HTTPException(400, f"run id {run_id[:120]!r}: not allowed; an id is {ID_RULE}")
    found = root / run_id
    if found.is_symlink() or not is_plain_file(found / "run.json"):
        raise NoRun(404, f"run {run_id!r} is not in {root}")
    return found


def run_dirs(root: Path) -> list[Path]:
    """The directories of all runs. One that may not be read is among them: it is there, and says why it is empty."""
    if not root.is_dir():
        return []
    return [path for path in root.iterdir() if is_plain(path.name) and not path.is_symlink() and _holds_run(path)]


def _holds_run(path: Path) -> bool:
    try:
        return is_plain_file(path / "run.json")
    except PermissionError:
        return True


def is_plain_file(file: Path) -> bool:
    """A file and no link, which could lead anywhere."""
    return file.is_file() and not file.is_symlink()


def whole_number(text: str) -> int | None:
    """A number of at most 15 ASCII digits; None for anything else, such as digits of other scripts and '²'."""
    return int(text) if _DIGITS.fullmatch(text) else None


def run_ids(text: str, limit: int = 32) -> list[str]:
    """A comma-separated list of run ids, each checked, no more than `limit`."""
    ids = [part for part in text.split(",") if part]
    if len(ids) > limit:
        raise HTTPException(400, f"{len(ids)} runs asked for at once; the limit is {limit}")
    for run_id in ids:
        if not is_plain(run_id):
            raise HTTPException(400, f"run id {run_id[:120]!r}: not allowed; an id is {ID_RULE}")
    return ids


def layout_name(name: str) -> str:
    """Layout names are shown, never used as a path, so any printable text of a decent length will do."""
    if not 1 <= len(name) <= 80 or not name.isprintable() or name != name.strip():
        raise HTTPException(400, f"layout name {name[:90]!r}: 1 to 80 printable characters, no space at either end")
    return name
