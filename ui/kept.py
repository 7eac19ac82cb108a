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
from typing import IO, Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from ui.names import layout_name, run_dir
from ui.replies import reply

LOCK_TIMEOUT_S = 5.0
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


class Damaged(HTTPException):
    """A kept file that cannot be read. It is never overwritten: somebody may want to mend it."""


class Kept:
    """One JSON object on disk, changed under a lock that other processes see too."""

    def __init__(self, root: Path, name: str) -> None:
        self.file = root / ".telescope" / name

    def read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise Damaged(409, f"{self.file}: not readable as JSON ({error}); mend it, or move it away") from error
        if not isinstance(found, dict):
            raise Damaged(409, f"{self.file}: holds no JSON object; mend it, or move it away")
        return found

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("w") as lock:
            self.take(lock)
            content = self.read()
            yield content
            fresh = self.file.with_suffix(".new")
            fresh.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            fresh.replace(self.file)

    def take(self, lock: IO[str]) -> None:
        """Waits for the lock, for a bounded time: a server that hangs with it must not hang this one."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    message = (
                        f"{self.file.name}: another server has been changing it for {LOCK_TIMEOUT_S:g} s; try again"
                    )
                    raise HTTPException(503, message) from error
            time.sleep(0.05)


def said_about(about: Kept) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """What people said, by run, and why it is missing when it is. Fields that are none of ours are left out."""
    try:
        held = about.read()
    except (Damaged, OSError) as error:
        return {}, [f"Names, notes and tags are missing: {error.detail if isinstance(error, Damaged) else error}"]
    return {run_id: _valid(said) for run_id, said in held.items()}, []


def _valid(said: Any) -> dict[str, Any]:
    fields = said.items() if isinstance(said, dict) else ()
    return {name: value for name, value in fields if name in ABOUT_FIELDS and ABOUT_FIELDS[name](value)}


def routes(root: Path) -> APIRouter:
    api = APIRouter()
    layouts = Kept(root, "layouts.json")
    keeping_layouts(api, layouts)
    changing_layouts(api, layouts)
    describing(api, root, Kept(root, "about.json"))
    return api


async def json_body(request: Request) -> dict[str, Any]:
    body = await request.body()
    if len(body) > MOST_BYTES:
        raise HTTPException(413, f"{len(body)} bytes sent; the limit is {MOST_BYTES}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise HTTPException(400, f"a JSON object is wanted, got {type(found).__name__}")
    _check_text(found)
    return found


def _check_text(found: dict[str, Any]) -> None:
    """JSON can name half of a character pair, which no file and no page can hold."""
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise HTTPException(400, f"a text holds half of a character ({error.object[error.start]!a})") from error


Body = Annotated[dict[str, Any], Depends(json_body)]
"""Read before the route runs, which is in a thread of its own: waiting for the lock stops no other page."""


def keeping_layouts(api: APIRouter, layouts: Kept) -> None:
    @api.get("/layouts")
    def names() -> Response:
        held = layouts.read()
        found = {name: _entry(held, name) for name in held}
        return reply({"layouts": [_summary(name, entry) for name, entry in found.items() if entry["version"]]})

    @api.get("/layouts/{name}")
    def one(name: str) -> Response:
        return reply(_shown(name, _entry(layouts.read(), layout_name(name))))

    @api.put("/layouts/{name}")
    def save(name: str, wanted: Body) -> Response:
        """Save when `version` is the one on disk; else 409 with what is there. Fields we do not know are kept."""
        layout = wanted.get("layout")
        check_layout(layout)
        with layouts.changing() as held:
            entry = _entry(held, layout_name(name))
            if wanted.get("version") != entry["version"]:
                return reply({"detail": "the layout was changed elsewhere", **_shown(name, entry)}, 409)
            if entry["layout"] is not None:
                entry["undo"] = [*entry["undo"], entry["layout"]][-MOST_UNDO:]
            entry.update(layout=layout, version=entry["version"] + 1, redo=[], saved_at=time.time())
            held[name] = entry
        return reply(_shown(name, entry))


def changing_layouts(api: APIRouter, layouts: Kept) -> None:
    @api.post("/layouts/{name}/{move}")
    def step_back(name: str, move: str) -> Response:
        """`undo` and `redo`: each is a new version, so that other browsers notice."""
        if move not in ("undo", "redo"):
            raise HTTPException(404, f"layout {name[:90]!r}: 'undo' or 'redo', got {move[:40]!r}")
        other = "redo" if move == "undo" else "undo"
        with layouts.changing() as held:
            entry = _entry(held, layout_name(name))
            if not entry[move]:
                raise HTTPException(409, f"layout {name!r}: nothing to {move}")
            entry[other].append(entry["layout"])
            entry.update(layout=entry[move].pop(), version=entry["version"] + 1, saved_at=time.time())
            held[name] = entry
        return reply(_shown(name, entry))

    @api.delete("/layouts/{name}")
    def delete(name: str) -> Response:
        with layouts.changing() as held:
            if held.pop(layout_name(name), None) is None:
                raise HTTPException(404, f"layout {name!r}: not there")
        return reply({"deleted": name})


def describing(api: APIRouter, root: Path, about: Kept) -> None:
    @api.put("/about/{run_id}")
    def describe(run_id: str, wanted: Body) -> Response:
        """Label, notes, tags, colour, archived: what people say about a run. The run itself is not changed."""
        run_dir(root, run_id)
        for name, value in wanted.items():
            if name not in ABOUT_FIELDS or not ABOUT_FIELDS[name](value):
                raise HTTPException(400, f"{name[:40]}: not a valid value for one of {', '.join(ABOUT_FIELDS)}")
        with about.changing() as held:
            held[run_id] = {**_valid(held.get(run_id)), **wanted}
        return reply(held[run_id])


LEVELS = ("sections", "groups", "charts")


def check_layout(found: Any, place: str = "layout", levels: tuple[str, ...] = LEVELS) -> None:
    """Sections hold groups, groups hold charts, charts hold keys; whatever else is in them is free."""
    if not isinstance(found, dict):
        raise HTTPException(400, f"{place}: an object is wanted, got {type(found).__name__}")
    name = levels[0] if levels else "keys"
    inner = found.get(name)
    if not isinstance(inner, list):
        raise HTTPException(400, f"{place}: a list {name!r} is wanted, got {type(inner).__name__}")
    for i, item in enumerate(inner):
        if levels:
            check_layout(item, f"{place}.{name}[{i}]", levels[1:])
        elif not isinstance(item, str):
            raise HTTPException(400, f"{place}.keys[{i}]: the key of a metric is wanted, got {type(item).__name__}")


def _entry(held: dict[str, Any], name: str) -> dict[str, Any]:
    """The layout of that name with its history. One that was damaged on disk counts as not there."""
    empty: dict[str, Any] = {"version": 0, "layout": None, "undo": [], "redo": []}
    return dict(held[name]) if _is_entry(held.get(name)) else empty


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("version"), int):
        return False
    if not all(isinstance(entry.get(move), list) for move in ("undo", "redo")):
        return False
    try:
        for layout in (entry.get("layout"), *entry["undo"], *entry["redo"]):
            check_layout(layout)
    except HTTPException:
        return False
    return True


def _summary(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    sections = entry["layout"]["sections"]
    charts = sum(len(group["charts"]) for section in sections for group in section["groups"])
    return {"name": name, "version": entry["version"], "charts": charts, "saved_at": entry.get("saved_at")}


def _shown(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    if not entry["version"]:
        return {"name": name, "version": 0, "layout": None}
    return {
        "name": name,
        "version": entry["version"],
        "layout": entry["layout"],
        "can_undo": bool(entry["undo"]),
        "can_redo": bool(entry["redo"]),
    }
