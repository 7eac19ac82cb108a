"""Names that come in from a browser. One rule each; a name that passes is one plain path component."""

import re
from pathlib import Path

from fastapi import HTTPException

ID_RULE = "1 to 100 letters, digits, '.', '_' or '-', the first a letter or a digit"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def is_plain(name: str) -> bool:
    return bool(_ID.fullmatch(name)) and not _DEVICE.fullmatch(name)


def run_dir(root: Path, run_id: str) -> Path:
    """The directory of a run that exists under `root` and nowhere else (links that lead out are refused)."""
    if not is_plain(run_id):
        raise HTTPException(400, f"run id {run_id[:120]!r}: not allowed; an id is {ID_RULE}")
    found = root / run_id
    if not (found / "run.json").is_file() or not found.resolve().is_relative_to(root.resolve()):
        raise HTTPException(404, f"run {run_id!r} is not in {root}")
    return found


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
