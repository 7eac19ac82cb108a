"""A run's record as pages need it. run.json may come from another version, an editor or a crash: here each field has
its type or is absent, so that one odd run cannot take the list of all runs down."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from app.jobs import FINAL, RunDir
from metrics import read

TEXTS = ("id", "name", "state", "phase", "reason", "model", "algorithm", "host", "job_id")
MOMENTS = ("created_at", "started_at", "ended_at")
MOST_CHARS = 20_000


def typed(run: Mapping[str, Any]) -> dict[str, Any]:
    """What `metrics.read.run` found, moments as unix seconds however they were written; unknown fields are left out."""
    return {
        **{name: text(run.get(name)) for name in TEXTS},
        **{name: moment(run.get(name)) for name in MOMENTS},
        **{name: whole(run.get(name)) for name in ("steps", "attempt", "last_step")},
        **{name: run.get(name) for name in ("elapsed_s", "latest", "sparkline")},
        "state": text(run.get("state")) or "unreadable",
        "environments": [environment(one) for one in entries(run.get("environments"))],
        "tags": [tag[:60] for tag in entries(run.get("tags")) if isinstance(tag, str)],
        "notes": text(run.get("notes")) or "",
        "archived": run.get("archived") is True,
        "versions": versions(run),
    }


def written(directory: Path) -> dict[str, Any]:
    """run.json as it stands; empty when it cannot be read."""
    try:
        found = orjson.loads((directory / "run.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def unsaid_end(directory: Path, state: Any) -> dict[str, Any]:
    """What is true of a run whose driver died on this machine before it could write so; nothing of any other.

    Where there is a cluster the job API writes it down soon; without one, pages would show a dead run as running.
    """
    if state in FINAL:
        return {}
    record = written(directory)
    try:
        end = RunDir(directory).unsaid_end(record)
    except OSError:  # a run of another user, whose lock may not be tried
        return {}
    if end is None or written(directory) != record:  # it has just ended, or been resumed
        return {}
    return {"state": end[0], "reason": text(end[1]), "phase": None, "elapsed_s": None}


def unreadable(run_id: str, error: OSError) -> dict[str, Any]:
    """The row of a run whose files may not be read."""
    reason = f"{error.filename or run_id}: {error.strerror or error}"
    said = {"id": run_id, "name": run_id, "state": "unreadable", "reason": reason}
    return typed({**said, "elapsed_s": None, "latest": {}, "sparkline": []})


def versions(run: Mapping[str, Any]) -> dict[str, str]:
    found = run.get("versions")
    return {str(name)[:80]: str(value)[:200] for name, value in found.items()} if isinstance(found, dict) else {}


def text(value: Any) -> str | None:
    return None if value is None else str(value)[:MOST_CHARS]


def whole(value: Any) -> int | None:
    """A count that a browser can hold exactly."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def moment(value: Any) -> float | None:
    found = None if isinstance(value, bool) else read.seconds(value)
    return found if found is not None and math.isfinite(found) else None


def entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def environment(entry: Any) -> str:
    """The name of an environment, which older records keep inside an object."""
    return str(entry.get("name", "") if isinstance(entry, dict) else entry)[:200]
