"""Reading tables while they may be written: verified segments, kept in memory, and damaged ones named.

Segments never change once written, so a decoded one is kept (up to CACHED_BYTES over all runs); a delta reads only
files that are new.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import polars as pl

from metrics.segments import MANIFEST, DamagedSegment, Manifest, Segment, read_manifest, read_segment, segment_bytes

CACHED_BYTES = 256 * 2**20
RETRIES = 20


@dataclass(frozen=True)
class Found:
    frames: list[pl.DataFrame]
    segments: list[Segment]
    damaged: list[str]
    """What could not be read, in words: a segment or a line of the manifest."""


class Cache:
    """Values by key, the oldest unused given up first when they take too many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.items: OrderedDict[tuple, tuple[object, int]] = OrderedDict()
        self.num_bytes = 0
        self.lock = Lock()

    def get(self, key: tuple) -> object | None:
        with self.lock:
            if key not in self.items:
                return None
            self.items.move_to_end(key)
            return self.items[key][0]

    def put(self, key: tuple, value: object, num_bytes: int) -> None:
        with self.lock:
            if key in self.items:
                self.num_bytes -= self.items.pop(key)[1]
            self.items[key] = (value, num_bytes)
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes and len(self.items) > 1:
                self.num_bytes -= self.items.popitem(last=False)[1][1]


SEGMENTS = Cache(CACHED_BYTES)
MANIFESTS = Cache(64 * 2**20)
VERIFIED = Cache(2**20)


def manifest(folder: Path) -> Manifest:
    """The folder's manifest, read again only when its file has changed."""
    try:
        stat = (folder / MANIFEST).stat()
    except FileNotFoundError:
        return Manifest([], [])
    stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    kept = MANIFESTS.get((str(folder),))
    if isinstance(kept, tuple) and kept[0] == stamp:
        return kept[1]
    found = read_manifest(folder)
    MANIFESTS.put((str(folder),), (stamp, found), stat.st_size + 1)
    return found


def read(
    folder: Path, wanted: Callable[[Segment], bool], columns: list[str] | None = None, *, keep: bool = True
) -> Found:
    """The frames of the wanted segments. A segment that is merged away during the reading is found in the new
    manifest."""
    for _ in range(RETRIES):
        known = manifest(folder)
        try:
            return read_all(
                folder,
                known,
                [segment for segment in known.segments if segment.num_rows and wanted(segment)],
                columns,
                keep,
            )
        except FileNotFoundError:
            if read_manifest(folder).segments == known.segments:
                return read_all(
                    folder,
                    known,
                    [s for s in known.segments if s.num_rows and wanted(s)],
                    columns,
                    keep,
                    missing_ok=True,
                )
    raise RuntimeError(f"{folder}: its segments were merged {RETRIES} times while it was read; try again")


def read_all(
    folder: Path,
    known: Manifest,
    segments: list[Segment],
    columns: list[str] | None,
    keep: bool,
    missing_ok: bool = False,
) -> Found:
    frames, good = [], []
    damaged = [f"{folder.name}/{MANIFEST}: line {number} is damaged" for number in known.damaged_lines]
    for segment in segments:
        try:
            frames.append(decoded(folder, segment, columns, keep))
            good.append(segment)
        except DamagedSegment as error:
            damaged.append(str(error))
        except FileNotFoundError:
            if not missing_ok:
                raise
            damaged.append(f"{folder.name}/{segment.file}: the file is missing")
    return Found(frames, good, damaged)


def decoded(folder: Path, segment: Segment, columns: list[str] | None, keep: bool) -> pl.DataFrame:
    key = (str(folder), segment.file, segment.sha256, tuple(columns or ()))
    kept = SEGMENTS.get(key)
    if isinstance(kept, pl.DataFrame):
        return kept
    frame = read_segment(folder, segment, columns)
    if keep:
        SEGMENTS.put(key, frame, int(frame.estimated_size()) + 1)
    return frame


def verified_path(folder: Path, segment: Segment) -> Path:
    """The segment's file, its checksum held against the manifest once in this process: for reading parts of a big
    file."""
    path = folder / segment.file
    stat = path.stat()
    key = (str(path), segment.sha256, stat.st_size, stat.st_mtime_ns)
    if VERIFIED.get(key) is None:
        segment_bytes(folder, segment)
        VERIFIED.put(key, True, 1)
    return path
