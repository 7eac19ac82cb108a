"""A run directory copied to a URL while it grows (S3, GCS, …), and brought back: a run outlives the disk of its head.

    python -m app.mirror URL [RUNS_DIR]     fetches a run, by `<the config's mirror>/<run id>`, into the runs folder

Files that name other files (journals, the seal of a checkpoint, run.json) are read before those they name are copied,
and written after them. So the copy is a run at every moment, a little old, and a run that is fetched can be looked at
and resumed. The URL is anything that pyarrow knows; what a store needs beside it comes from its own environment
variables (for S3: AWS_ACCESS_KEY_ID and so on, AWS_ENDPOINT_URL for another server).
"""

import argparse
import io
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from pyarrow import fs

from app.run_dir import RunError, check_id, root_of
from app.sealed import PLACE

logger = logging.getLogger("telescope")
EVERY_S = 15.0
END_LIMIT_S = 600.0
"""Longest time that the end of a run waits for its last files to be copied."""
END_PAUSES_S = (1.0, 5.0, 15.0, 0.0)
"""Pauses after each time that the last files could not be copied."""
TRIES = 5
"""How often a pass begins again because files were merged meanwhile, before the next one is waited for."""
CHUNK_BYTES = 8 << 20
NAMING = (".jsonl", PLACE, "run.json")
"""Endings of files that name others."""
CHECKPOINTS = "checkpoints/"
INDEX = ".metadata"
"""What torch calls its index of a checkpoint."""
LEFT_OUT_FOLDERS = ("train", "wandb")
LEFT_OUT_ENDINGS = (".tmp", ".lock", "/lock")
Stamp = tuple[int, int]


class MirrorError(RunError):
    """The URL cannot be reached, read or written; the message says which and why."""


def opened(url: str) -> tuple[fs.FileSystem, str]:
    """(file system, path in it) of a URL. Raises MirrorError with what is wrong with it."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise MirrorError(
            f"mirror {parts.scheme}://{parts.hostname or ''}…: a URL with a key, a password or options would be stored "
            "with the run; leave them out and set the store's environment variables"
        )
    try:
        system, path = fs.FileSystem.from_uri(url)
        if isinstance(system, fs.S3FileSystem) and (endpoint := os.environ.get("AWS_ENDPOINT_URL")):
            system = fs.S3FileSystem(endpoint_override=endpoint)
    except (ValueError, OSError) as error:
        raise MirrorError(
            f"mirror {url!r}: cannot be opened ({error}); wanted a URL like s3://bucket/folder"
        ) from error
    return system, path.rstrip("/")


class Mirror:
    """One run directory and its copy. `sync` may be called at any time, from one thread."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self.run_dir = run_dir
        self.system, root = opened(url)
        self.root = f"{root}/{run_dir.name}"
        self.copied: dict[str, Stamp] = {}

    def check(self) -> None:
        """Refuses a URL that cannot be written, before anything expensive starts."""
        try:
            self._write("run.json", io.BytesIO((self.run_dir / "run.json").read_bytes()))
        except OSError as error:
            raise MirrorError(f"mirror: {self.root} cannot be written ({error}); see the store's rights") from error

    def sync(self) -> int:
        """Copies what has changed and removes what is gone; returns how many files were copied. Raises OSError."""
        count = 0
        for _ in range(TRIES):
            before = dict(self._files())
            naming = {name: self._read(name) for name in sorted(filter(is_naming, before), key=in_order)}
            files = dict(self._files())
            count += sum(self._copy(name) for name in files if not is_naming(name))
            present = dict(self._files()).keys()
            broken = {str(PurePosixPath(name).parent) for name in (before | files).keys() - present}
            if not all(folder.startswith(CHECKPOINTS) for folder in broken):
                continue  # merged meanwhile: what was read may name what is gone
            for name, data in reversed(naming.items()):
                # A checkpoint names only its own files: that one is removed keeps no other back.
                if data is None or str(PurePosixPath(name).parent) in broken or self.copied.get(name) == before[name]:
                    continue
                self._write(name, io.BytesIO(data))
                self.copied[name] = before[name]  # from before it was read: an addition since is copied next time
                count += 1
            self._remove(self.copied.keys() - present)
            break
        return count

    def _copy(self, name: str) -> bool:
        file = self.run_dir / name
        try:
            stamp = stamp_of(file)
            if self.copied.get(name) == stamp:
                return False
            with file.open("rb") as data:
                self._write(name, data)
        except FileNotFoundError:
            return False  # `sync` sees that it is gone
        self.copied[name] = stamp
        return True

    def _remove(self, names: set[str]) -> None:
        """Seals first: a checkpoint that is half removed is none."""
        for name in sorted(names, key=is_naming, reverse=True):
            self.system.delete_file(f"{self.root}/{name}")
            del self.copied[name]

    def _read(self, name: str) -> bytes | None:
        """None for a file that is gone."""
        try:
            return (self.run_dir / name).read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: IO[bytes]) -> None:
        path = f"{self.root}/{name}"
        if isinstance(self.system, fs.LocalFileSystem):  # in an object store there are no folders
            self.system.create_dir(str(PurePosixPath(path).parent))
        with self.system.open_output_stream(path) as out:
            shutil.copyfileobj(data, out, CHUNK_BYTES)

    def _files(self) -> Iterator[tuple[str, Stamp]]:
        for file in sorted(self.run_dir.rglob("*")):
            name = file.relative_to(self.run_dir).as_posix()
            is_temporary = file.name.startswith(".") and file.name != INDEX
            if name.split("/")[0] in LEFT_OUT_FOLDERS or name.endswith(LEFT_OUT_ENDINGS) or is_temporary:
                continue
            try:
                if file.is_file():
                    yield name, stamp_of(file)
            except FileNotFoundError:
                continue


def is_naming(name: str) -> bool:
    return name.endswith(NAMING)


def in_order(name: str) -> tuple[bool, bool]:
    """The order in which files that name others are read; they are written in reverse.

    The end of a run speaks for its checkpoints, and a checkpoint for the numbers of its steps.
    """
    return name != "run.json", not name.startswith(CHECKPOINTS)


def stamp_of(file: Path) -> Stamp:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


@contextmanager
def mirrored(run_dir: Path, url: str | None) -> Iterator[None]:
    """Keeps the copy up to date while the block runs, and once more after it. A store that fails ends no run: it is
    said in the log, and tried again."""
    if url is None:
        yield
        return
    mirror, over = Mirror(run_dir, url), threading.Event()
    mirror.check()

    def copy() -> None:
        while not over.wait(EVERY_S):
            _tried(mirror)
        for pause_s in END_PAUSES_S:
            if _tried(mirror):
                return
            time.sleep(pause_s)
        logger.error("mirror: the last files were not copied (%s)", mirror.root)

    thread = threading.Thread(target=copy, daemon=True, name="mirror")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(END_LIMIT_S)
        if thread.is_alive():
            logger.error("mirror: the last files were not copied within %.0f s (%s)", END_LIMIT_S, mirror.root)


def _tried(mirror: Mirror) -> bool:
    try:
        mirror.sync()
    except OSError as error:
        logger.warning("mirror: %s is behind, trying again: %s", mirror.root, error)
        return False
    return True


def fetch(url: str, runs_dir: Path) -> Path:
    """Copies a run from its URL into the runs folder and returns its directory, which must not exist."""
    system, root = opened(url)
    target = runs_dir / check_id(PurePosixPath(root).name)
    if target.exists():
        raise MirrorError(f"{target} exists already; move it away, or name another folder")
    try:
        found = [one for one in system.get_file_info(fs.FileSelector(root, recursive=True)) if one.is_file]
    except OSError as error:
        raise MirrorError(f"{url}: cannot be read ({error})") from error
    names = {one.path.removeprefix(f"{root}/"): one.path for one in found}
    if "run.json" not in names:
        raise MirrorError(f"{url}: there is no run.json; wanted the URL of a run, <mirror>/<run id>")
    aside = runs_dir / f".fetching-{target.name}"
    for name, path in names.items():
        file = aside / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with system.open_input_stream(path) as data, file.open("wb") as out:
            shutil.copyfileobj(data, out, CHUNK_BYTES)
    for folder in ("metrics", "logs", "checkpoints"):
        (aside / folder).mkdir(exist_ok=True)
    aside.rename(target)
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.mirror", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("url", help="of the run: <mirror>/<run id>")
    parser.add_argument("runs_dir", nargs="?", help="default: $TELESCOPE_RUNS or ~/telescope_runs")
    options = parser.parse_args(arguments)
    try:
        path = fetch(options.url, root_of(options.runs_dir))
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{path}\nresume it with: python -m app.train --run-dir {path} --resume")
    return 0


if __name__ == "__main__":
    sys.exit(main())
