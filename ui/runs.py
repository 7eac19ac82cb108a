"""Routes for runs: the list, one run whole, two side by side, their logs, and the controls."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from app.jobs import FINAL, RunDir
from metrics import read
from metrics.checks import CHECKS
from ui import configs, records
from ui.history import changed_at
from ui.kept import Kept, json_body, said_about
from ui.names import FARTHEST, is_plain, is_plain_file, run_dir, run_dirs
from ui.replies import reply, tagged

NO_JOBS = (
    "This dashboard was started without a cluster, so it can show runs but not start or stop them. "
    "Type: serve run app.serve:app"
)
LOG_BYTES = 256_000
MOST_NAMED = 5  # damaged files
T = TypeVar("T")


class Remembered(Generic[T]):
    """A value a directory, made again when its stamp differs."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[object, T]] = {}
        self._lock = threading.Lock()

    def get(self, directory: Path, stamp: object, make: Callable[[], T]) -> T:
        with self._lock:
            held = self._held.get(directory)
            if held is None or held[0] != stamp:
                held = self._held[directory] = (stamp, make())
            return held[1]


class Listing:
    """The list of runs; a run is read again only when its files have changed."""

    def __init__(self, root: Path) -> None:
        self.root, self.about = root, Kept(root, "about.json")
        self._rows = Remembered[dict[str, Any]]()
        self._configs = Remembered[dict[str, Any]]()

    def rows(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The newest first, and what could not be read beside them."""
        about, problems = said_about(self.about)
        rows = [{**self._standing(directory), **about.get(directory.name, {})} for directory in run_dirs(self.root)]
        return sorted(rows, key=lambda row: (row["created_at"] or 0.0, row["id"]), reverse=True), problems

    def configs(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Each run's configuration as dotted keys; for those that cannot be read, why."""
        found, unreadable = {}, {}
        for directory in run_dirs(self.root):
            try:
                found[directory.name] = self._config(directory)
            except (ValueError, OSError) as error:
                unreadable[directory.name] = str(error)
        return found, unreadable

    def _standing(self, directory: Path) -> dict[str, Any]:
        row = self._row(directory)
        return row | records.unsaid_end(directory, row["state"])

    def _row(self, directory: Path) -> dict[str, Any]:
        try:
            stamp = (file_stamp(directory / "run.json"), changed_at(directory))
            return self._rows.get(directory, stamp, lambda: self._typed(directory))
        except OSError as error:
            return records.unreadable(directory.name, error)

    def _typed(self, directory: Path) -> dict[str, Any]:
        return records.typed(read.run(self.root, directory.name)) | {"resumable": self._resumable(directory)}

    def _resumable(self, directory: Path) -> bool:
        """Whether there is a checkpoint or there are to be some. Where that cannot be read, resuming says why."""
        try:
            return RunDir(directory).has_checkpoint() or self._config(directory).get("checkpoint_every") != 0
        except (ValueError, OSError):
            return True

    def _config(self, directory: Path) -> dict[str, Any]:
        file = directory / "config.yaml"
        return self._configs.get(directory, file_stamp(file), lambda: configs.stored(file))


def file_stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_mtime_ns


def routes(root: Path, jobs: Any) -> APIRouter:
    api = APIRouter()
    listing = Listing(root)
    reading(api, listing)
    comparing(api, listing)
    controlling(api, root, jobs)

    @api.get("/logs")
    def logs(run: str, name: str = "", after: int = Query(-1, ge=-1, le=FARTHEST)) -> Response:
        """The end of a log, or what came after a byte offset; `names` lists the logs of the run."""
        return reply(log_part(run_dir(root, run), name, after, live_log(jobs, run)))

    @api.get("/runs")
    def runs(request: Request) -> Response:
        """Every run, the newest first, with what people said about it and a small reward curve."""
        rows, problems = listing.rows()
        controls = {"on": jobs is not None, "why": "" if jobs is not None else NO_JOBS}
        return tagged(request, {"root": str(root), "runs": rows, "controls": controls, "problems": problems})

    return api


def reading(api: APIRouter, listing: Listing) -> None:
    @api.get("/runs/{run_id}")
    def run(run_id: str) -> Response:
        """One run: record, configuration as written and as dotted keys, and its self-checks."""
        directory = run_dir(listing.root, run_id)
        text = _text(directory / "config.yaml")
        about = said_about(listing.about)[0].get(run_id, {})
        record = records.typed(read.run(listing.root, run_id))
        record |= records.unsaid_end(directory, record["state"])
        return reply({"run": record, "config": text, "checks": self_checks(directory), "about": about})


def comparing(api: APIRouter, listing: Listing) -> None:
    @api.get("/compare")
    def compare(left: str, right: str) -> Response:
        """What differs between two runs: configuration keys and the versions of code and libraries."""
        sides = [run_dir(listing.root, left), run_dir(listing.root, right)]
        flat, problems = zip(*(_config_or_why(side) for side in sides), strict=True)
        versions = [records.versions(read.run(listing.root, side.name)) for side in sides]
        found = {"config": configs.difference(*flat), "versions": configs.difference(*versions)}
        return reply({**found, "problems": [problem for problem in problems if problem]})

    @api.get("/configs")
    def config_values() -> Response:
        """Configuration of every run as dotted keys, for `key=value` filters."""
        found, unreadable = listing.configs()
        return reply({"configs": found, "unreadable": unreadable})


def _config_or_why(directory: Path) -> tuple[dict[str, Any], str]:
    try:
        return configs.stored(directory / "config.yaml"), ""
    except ValueError as error:
        return {}, f"{directory.name}: {error}"


async def _changes(request: Request) -> list[str]:
    """The `overrides` of a resume, where there is a body."""
    found = await json_body(request) if await request.body() else {}
    overrides = found.pop("overrides", [])
    if found or not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        raise HTTPException(400, 'got another body, wanted {"overrides": ["key=value", …]}')
    return overrides


def controlling(api: APIRouter, root: Path, jobs: Any) -> None:
    @api.post("/runs/{run_id}/{action}")
    def control(run_id: str, action: str, changes: Annotated[list[str], Depends(_changes)]) -> Response:
        """`stop` and `resume`; the answer is the state as it is, not as it was asked for."""
        if action not in ("stop", "resume"):
            raise HTTPException(404, f"run {run_id!r}: 'stop' or 'resume', got {action[:40]!r}")
        run_dir(root, run_id)
        if jobs is None:
            raise HTTPException(409, NO_JOBS)
        try:
            handle = jobs.get(run_id)
            if action == "resume":
                handle = jobs.resume(handle, changes)
            else:
                handle.stop()
            return reply({"id": handle.id, "state": handle.status()})
        except (ValueError, RuntimeError, OSError) as error:
            raise HTTPException(409, str(error)) from error


def self_checks(directory: Path) -> list[dict[str, Any]]:
    """Every self-check with what it says; those that failed lead, with their newest line and when it was."""
    failed = [*unreadable_files(directory), *read.checks(directory)]
    known = {item["check"] for item in failed}
    never = [
        {"check": one.__name__, "ok": True, "failures": 0, "message": (one.__doc__ or "").strip().split("\n")[0]}
        for one in CHECKS
        if one.__name__ not in known
    ]
    return [*failed, *never]


def unreadable_files(directory: Path) -> list[dict[str, Any]]:
    """A check that fails where steps are missing from the curves because their files cannot be read."""
    found = read.damaged(directory, ["series"])
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    message = f"these values are missing from every page: {'; '.join(found[:MOST_NAMED])}{more}"
    return [{"check": "unreadable_files", "ok": False, "failures": 0, "message": message}] if found else []


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if is_plain_file(file) else ""


def live_log(jobs: Any, run_id: str) -> tuple[str, bytes] | None:
    """Name and contents of what a driver has printed so far: Ray keeps it, and it becomes a file when the run ends."""
    if jobs is None:
        return None
    try:
        handle = jobs.get(run_id)
        record = handle.record()
    except ValueError:  # a record that cannot be read; the files of the run are shown
        return None
    if record["state"] in ("pending", *FINAL) or record["job_id"] is None:
        return None
    return f"job-{record['attempt']}.log", handle.logs().encode()


def log_names(directory: Path) -> list[str]:
    """Plain files directly in logs/: a link could lead anywhere and is not followed. What a driver printed, of the
    newest attempt first, leads."""
    folder = directory / "logs"
    if not folder.is_dir() or folder.is_symlink():
        return []
    names = sorted(file.name for file in folder.iterdir() if is_plain_file(file) and is_plain(file.name))
    printed = [name for name in names if name.startswith("job-")]
    return [*sorted(printed, key=lambda name: (len(name), name), reverse=True), *(n for n in names if n not in printed)]


def log_part(directory: Path, name: str, after: int, live: tuple[str, bytes] | None = None) -> dict[str, Any]:
    files = log_names(directory)
    names = [live[0], *(one for one in files if one != live[0])] if live else files
    if not names:
        return {"names": [], "name": None, "text": "", "start": 0, "end": 0}
    name = name or names[0]
    if name not in names:
        raise HTTPException(404, f"log {name[:80]!r}: not one of {', '.join(names)}")
    with io.BytesIO(live[1]) if live and name == live[0] else (directory / "logs" / name).open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - LOG_BYTES) if after < 0 or after > size else max(after, size - LOG_BYTES)
        file.seek(start)
        body = file.read(LOG_BYTES)
    text = body.decode("utf-8", "replace")
    return {"names": names, "name": name, "text": text, "start": start, "end": start + len(body)}
