"""What the dashboard itself keeps beside the runs: layouts of the Custom view, and what people say about runs.

Both are small JSON files in `<root>/.telescope/`, replaced as a whole under a lock, so that two servers or two
browsers cannot tear them.
"""

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from ui.names import layout_name, run_dir
from ui.replies import reply

MOST_UNDO = 50
MOST_BYTES = 1_000_000
ABOUT_FIELDS: dict[str, Callable[[Any], bool]] = {
    "label": lambda value: isinstance(value, str) and len(value) <= 120,
    "notes": lambda value: isinstance(value, str) and len(value) <= 20_000,
    "tags": lambda value: (
        isinstance(value, list) and len(value) <= 40 and all(isinstance(tag, str) and len(tag) <= 60 for tag in value)
    ),
    "archived": lambda value: isinstance(value, bool),
    "color": lambda value: value is None or (isinstance(value, int) and 0 <= value < 10),
}


class Kept:
    """One JSON object on disk, changed under a lock that other processes see too."""

    def __init__(self, root: Path, name: str) -> None:
        self.file = root / ".telescope" / name

    def read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if not isinstance(found, dict):
            raise HTTPException(500, f"{self.file}: a JSON object is wanted; move the file away to start afresh")
        return found

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            content = self.read()
            yield content
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            fresh.replace(self.file)


def routes(root: Path) -> APIRouter:
    api = APIRouter()
    layouts, about = Kept(root, "layouts.json"), Kept(root, "about.json")

    @api.get("/layouts")
    def names() -> Response:
        return reply({"layouts": [_summary(name, entry) for name, entry in layouts.read().items()]})

    @api.get("/layouts/{name}")
    def one(name: str) -> Response:
        entry = layouts.read().get(layout_name(name))
        return reply(_shown(name, entry) if entry else {"name": name, "version": 0, "layout": None})

    @api.put("/layouts/{name}")
    async def save(name: str, request: Request) -> Response:
        """Save when `version` is the one on disk; else 409 with what is there. Fields we do not know are kept."""
        wanted = await _json(request)
        layout = wanted.get("layout")
        if not isinstance(layout, dict) or not isinstance(layout.get("sections"), list):
            raise HTTPException(400, "layout: an object with a list 'sections' is wanted")
        with layouts.changing() as held:
            entry = held.get(layout_name(name)) or {"version": 0, "layout": None, "undo": [], "redo": []}
            if wanted.get("version") != entry["version"]:
                return reply({"detail": "the layout was changed elsewhere", **_shown(name, entry)}, 409)
            if entry["layout"] is not None:
                entry["undo"] = [*entry["undo"], entry["layout"]][-MOST_UNDO:]
            entry.update(layout=layout, version=entry["version"] + 1, redo=[], saved_at=time.time())
            held[name] = entry
        return reply(_shown(name, entry))

    @api.post("/layouts/{name}/{move}")
    def step_back(name: str, move: str) -> Response:
        """`undo` and `redo`: each is a new version, so that other browsers notice."""
        if move not in ("undo", "redo"):
            raise HTTPException(404, f"layout {name[:90]!r}: 'undo' or 'redo', got {move[:40]!r}")
        other = "redo" if move == "undo" else "undo"
        with layouts.changing() as held:
            entry = held.get(layout_name(name))
            if not entry or not entry[move]:
                raise HTTPException(409, f"layout {name!r}: nothing to {move}")
            entry[other].append(entry["layout"])
            entry.update(layout=entry[move].pop(), version=entry["version"] + 1, saved_at=time.time())
        return reply(_shown(name, entry))

    @api.delete("/layouts/{name}")
    def delete(name: str) -> Response:
        with layouts.changing() as held:
            if held.pop(layout_name(name), None) is None:
                raise HTTPException(404, f"layout {name!r}: not there")
        return reply({"deleted": name})

    @api.put("/about/{run_id}")
    async def describe(run_id: str, request: Request) -> Response:
        """Label, notes, tags, colour, archived: what people say about a run. The run itself is not changed."""
        run_dir(root, run_id)
        wanted = await _json(request)
        for name, value in wanted.items():
            if name not in ABOUT_FIELDS or not ABOUT_FIELDS[name](value):
                raise HTTPException(400, f"{name[:40]}: not a valid value for one of {', '.join(ABOUT_FIELDS)}")
        with about.changing() as held:
            held[run_id] = {**held.get(run_id, {}), **wanted}
        return reply(held[run_id])

    return api


async def _json(request: Request) -> dict[str, Any]:
    body = await request.body()
    if len(body) > MOST_BYTES:
        raise HTTPException(413, f"{len(body)} bytes sent; the limit is {MOST_BYTES}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(400, f"a JSON object is wanted, got {type(found).__name__}")
    return found


def _summary(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    sections = entry["layout"]["sections"]
    charts = sum(len(group.get("charts", [])) for section in sections for group in section.get("groups", []))
    return {"name": name, "version": entry["version"], "charts": charts, "saved_at": entry.get("saved_at")}


def _shown(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "version": entry["version"],
        "layout": entry["layout"],
        "can_undo": bool(entry["undo"]),
        "can_redo": bool(entry["redo"]),
    }
