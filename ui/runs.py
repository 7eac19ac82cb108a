"""Routes for runs: the list, one run whole, two side by side, their logs, and the controls."""

import json
import threading
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Query, Request, Response

from metrics import read
from metrics.checks import CHECKS
from ui import configs
from ui.history import changed_at
from ui.kept import Kept
from ui.names import is_plain, run_dir
from ui.replies import reply, tagged

NO_JOBS = (
    "This dashboard was started without a cluster, so it can show runs but not start or stop them. "
    "Type: serve run app.serve:app"
)
LOG_BYTES = 256_000


class Listing:
    """The list of runs; a run is read again only when its files have changed."""

    def __init__(self, root: Path) -> None:
        self.root, self.about = root, Kept(root, "about.json")
        self._known: dict[str, tuple[object, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[dict[str, Any]]:
        about = self.about.read()
        with self._lock:
            rows = [self._row(file.parent, about.get(file.parent.name, {})) for file in self.root.glob("*/run.json")]
        return sorted(rows, key=lambda row: (row["created_at"] or 0.0, row["id"]), reverse=True)

    def _row(self, directory: Path, said: dict[str, Any]) -> dict[str, Any]:
        stamp = (file_stamp(directory / "run.json"), changed_at(directory))
        known = self._known.get(directory.name)
        if known is None or known[0] != stamp:
            known = (stamp, timed(read.run(self.root, directory.name)))
            self._known[directory.name] = known
        return {**known[1], **said}


def file_stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns


def timed(run: dict[str, Any]) -> dict[str, Any]:
    """Moments as unix seconds, however the record writes them."""
    moments = {name: read.seconds(run.get(name)) for name in ("created_at", "started_at", "ended_at")}
    return {**run, **moments, "environments": [named(one) for one in run.get("environments") or []]}


def named(environment: Any) -> str:
    return str(environment.get("name", "")) if isinstance(environment, dict) else str(environment)


def routes(root: Path, jobs: Any) -> APIRouter:
    api = APIRouter()
    listing = Listing(root)

    @api.get("/runs")
    def runs(request: Request) -> Response:
        """Every run, the newest first, with what people said about it and a small reward curve."""
        controls = {"on": jobs is not None, "why": "" if jobs is not None else NO_JOBS}
        return tagged(request, {"root": str(root), "runs": listing.rows(), "controls": controls})

    @api.get("/runs/{run_id}")
    def run(run_id: str) -> Response:
        """One run: record, configuration as written and as dotted keys, and its self-checks."""
        directory = run_dir(root, run_id)
        text = _text(directory / "config.yaml")
        found = {"run": timed(read.run(root, run_id)), "config": text, "checks": self_checks(directory)}
        return reply({**found, "about": listing.about.read().get(run_id, {})})

    @api.get("/compare")
    def compare(left: str, right: str) -> Response:
        """What differs between two runs: configuration keys and the versions of code and libraries."""
        sides = [run_dir(root, left), run_dir(root, right)]
        config = [configs.flat(_config(side)) for side in sides]
        versions = [json.loads(_text(side / "run.json")).get("versions") or {} for side in sides]
        return reply({"config": configs.difference(*config), "versions": configs.difference(*versions)})

    @api.get("/configs")
    def config_values() -> Response:
        """Configuration of every run as dotted keys, for `key=value` filters."""
        found = {row["id"]: configs.flat(_config(root / row["id"])) for row in listing.rows()}
        return reply({"configs": found})

    @api.get("/logs")
    def logs(run: str, name: str = "", after: int = Query(-1, ge=-1)) -> Response:
        """The end of a log, or what came after a byte offset; `names` lists the logs of the run."""
        return reply(log_part(run_dir(root, run), name, after))

    @api.post("/runs/{run_id}/{action}")
    def control(run_id: str, action: str) -> Response:
        """`stop` and `resume`; the answer is the state as it is, not as it was asked for."""
        if action not in ("stop", "resume"):
            raise HTTPException(404, f"run {run_id!r}: 'stop' or 'resume', got {action[:40]!r}")
        run_dir(root, run_id)
        if jobs is None:
            raise HTTPException(409, NO_JOBS)
        try:
            handle = jobs.get(run_id)
            handle = jobs.resume(handle) if action == "resume" else (handle.stop(), handle)[1]
            return reply({"id": handle.id, "state": handle.status()})
        except (ValueError, RuntimeError, OSError) as error:
            raise HTTPException(409, str(error)) from error

    return api


def self_checks(directory: Path) -> list[dict[str, Any]]:
    """Every self-check with what it says; those that failed lead, with their newest line and when it was."""
    failed = read.checks(directory)
    known = {item["check"] for item in failed}
    never = [
        {"check": one.__name__, "ok": True, "failures": 0, "message": (one.__doc__ or "").strip().split("\n")[0]}
        for one in CHECKS
        if one.__name__ not in known
    ]
    return [*failed, *never]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _config(directory: Path) -> dict[str, Any]:
    """The stored configuration as data, also of runs written by another version, so it is not validated."""
    from ruamel.yaml import YAML

    found = YAML(typ="safe", pure=True).load(_text(directory / "config.yaml"))
    return found if isinstance(found, dict) else {}


def log_names(directory: Path) -> list[str]:
    """Plain files directly in logs/: a link could lead anywhere and is not followed."""
    folder = directory / "logs"
    if not folder.is_dir() or folder.is_symlink():
        return []
    files = [file for file in folder.iterdir() if file.is_file() and not file.is_symlink() and is_plain(file.name)]
    return sorted((file.name for file in files), key=lambda name: (name != "driver.log", name))


def log_part(directory: Path, name: str, after: int) -> dict[str, Any]:
    names = log_names(directory)
    if not names:
        return {"names": [], "name": None, "text": "", "start": 0, "end": 0}
    name = name or names[0]
    if name not in names:
        raise HTTPException(404, f"log {name[:80]!r}: not one of {', '.join(names)}")
    with (directory / "logs" / name).open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - LOG_BYTES) if after < 0 or after > size else max(after, size - LOG_BYTES)
        file.seek(start)
        body = file.read(LOG_BYTES)
    text = body.decode("utf-8", "replace")
    return {"names": names, "name": name, "text": text, "start": start, "end": start + len(body)}
